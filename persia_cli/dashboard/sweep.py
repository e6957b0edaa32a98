"""A sweep: its state, and its settings with those that no other setting beats."""

import math
from typing import Any

from persia_cli.config.record import SWEEP
from persia_cli.dashboard.folder import Folder
from persia_cli.disk import is_held, open_regular
from persia_cli.errors import UserError
from persia_cli.metric import aim_of, goodness
from persia_cli.observe.history import metric_name
from persia_cli.sweeps.comparison import mean_of
from persia_cli.sweeps.folder import PointOutcome, SweepRequest, counted, read_results
from persia_cli.sweeps.points import name_setting, settings_of, short_name

STALENESS = "mode.staleness"


def sweep_row(folder: Folder, name: str) -> dict[str, Any]:
    """Return the state of a sweep and the numbers of its points; of a damaged or removed one, the reason."""
    try:
        path = folder.sweep(name)
        request, digests = SweepRequest.read(path)
        results = read_results(path)
        with open_regular(path / SWEEP, 2**24) as file:
            is_running = is_held(file.fileno())
    except (UserError, OSError) as error:
        return {"sweep": name, "state": "damaged", "text": str(error)}
    states = [outcome.state for outcome in results]
    points = len(digests) if request.search is None else request.search.total
    state = "running" if is_running else "done" if len(states) - states.count("unfinished") >= points else "stopped"
    counts = {"points": points, "done": states.count("done") + states.count("pruned"), "failed": states.count("failed")}
    return {"sweep": name, "state": state, "text": " ".join(request.arguments), **counts}


def sweep_details(folder: Folder, name: str, metric: str | None = None) -> dict[str, Any]:
    """Return a sweep's row, and its settings with means over seeds; raises UserError if there is no such sweep.

    `is_best`: no other setting is as fast and as good; `is_top`: none is as good.

    Settings are compared by `metric`: by default the requested one, else AUC, RMSE or the loss.
    """
    path, row = folder.sweep(name), sweep_row(folder, name)
    if row["state"] == "damaged":
        return {**row, "settings": [], "metric": None}
    results = counted(read_results(path))
    there = {key for each in results if each.metrics for key in each.metrics.quality}
    metric = (
        metric or SweepRequest.read(path)[0].metric or next((key for key in ("auc", "rmse") if key in there), "loss")
    )
    settings = settings_of([outcome.point for outcome in results])
    rows = [_setting([each for each in results if each.point.setting == setting], metric) for setting in settings]
    best, top = -math.inf, None
    for each in sorted(rows, key=lambda each: -each["speed"]["mean"] if each["speed"] else 0.0):
        good = goodness(aim_of(metric), each["quality"]["mean"]) if each["speed"] and each["quality"] else -math.inf
        each["is_best"] = good > best
        if each["is_best"]:
            best, top = good, each
    for each in rows:
        each["is_top"] = each is top
    return {**row, "metric": metric_name(metric), "settings": rows}


def _setting(results: list[PointOutcome], metric: str) -> dict[str, Any]:
    """Return a setting with the means of speed and quality over its points."""
    done, setting = [each.metrics for each in results if each.metrics], results[0].point.setting
    staleness = dict(setting).get(STALENESS, "")
    speeds = [each.samples_per_s for each in done if each.samples_per_s is not None]
    qualities = [value for each in done if (value := each.quality.get(metric)) is not None]
    means = {"speed": mean_of(speeds), "quality": mean_of(qualities)}
    return {
        "setting": name_setting(setting),
        "label": short_name(setting),
        "staleness": int(staleness) if staleness.isdecimal() else None,
        "others": short_name(tuple(pair for pair in setting if pair[0] != STALENESS)),
        "finished": len(done),
        "failed": sum(each.error is not None for each in results),
        **{key: mean and {"mean": mean.mean, "margin": mean.margin} for key, mean in means.items()},
    }
