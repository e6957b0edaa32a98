"""Details of one run, a comparison of several, and details of a sweep, besides curves."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from persia_cli.config.record import CONFIG, SWEEP
from persia_cli.config.schema.metric import aim_of, goodness
from persia_cli.disk import is_held
from persia_cli.errors import PersiaError, UserError
from persia_cli.observe.history import key_metrics, read_history
from persia_cli.observe.journal import understanding
from persia_cli.observe.overview import differing_settings
from persia_cli.observe.report_page import notes, sections
from persia_cli.sweeps.comparison import Mean, Row, compare
from persia_cli.sweeps.folder import PointOutcome, SweepRequest, counted, read_results
from persia_cli.sweeps.points import name_setting, settings_of, short_name

MAX_CONFIG_BYTES = 1 << 20
MAX_ROWS = 200
"""Rows at the end of a table that are shown."""


def run_details(path: Path, name: str) -> dict[str, Any]:
    """Return the facts, tables and configuration of a run; of a damaged one, the reason."""
    config = ""
    try:
        with (path / CONFIG).open(encoding="utf-8", errors="replace") as file:
            config = file.read(MAX_CONFIG_BYTES)
        history = read_history(path)
        with understanding(path):
            outcome, reliability = history.outcome(time.time()), history.last_event("reliability")
            return {
                "run": name,
                "name": history.run.name,
                "state": outcome.state,
                "text": outcome.text,
                "began_s": history.begin_s,
                "last_s": history.end_s,
                "facts": key_metrics(history),
                "notes": notes(history),
                "tables": {
                    title: rows[:1] + rows[1:][-MAX_ROWS:] for title, rows in sections(history).items() if len(rows) > 1
                },
                "reliability": reliability,
                "config": config,
            }
    except (PersiaError, OSError) as error:
        return {"run": name, "name": name, "state": "damaged", "text": str(error), "config": config}


def comparison(runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return the settings in which runs differ and their metrics; a run that is damaged has a reason instead."""
    found, damaged = {}, {}
    for name, path in runs.items():
        try:
            history = read_history(path)
            with understanding(path):
                found[name] = history.run, key_metrics(history)
        except (PersiaError, OSError) as error:
            damaged[name] = str(error).splitlines()[0]
    settings = differing_settings([run for run, _ in found.values()])
    names = dict.fromkeys(key for _, facts in found.values() for key in facts)
    facts = {key: [facts.get(key, "-") for _, facts in found.values()] for key in names}
    return {"runs": list(found), "damaged": damaged, "settings": settings, "facts": facts}


def sweep_row(path: Path, name: str) -> dict[str, Any]:
    """Return the state of a sweep and the numbers of its points."""
    try:
        request, digests = SweepRequest.read(path)
        results = read_results(path)
        with (path / SWEEP).open("rb") as file:
            is_running = is_held(file.fileno())
    except (UserError, OSError) as error:
        return {"sweep": name, "state": "damaged", "text": str(error)}
    failed = sum(outcome.error is not None for outcome in results)
    points = len(digests) if request.search is None else request.search.total
    state = "running" if is_running else "done" if len(results) >= points else "stopped"
    counts = {"points": points, "done": len(results) - failed, "failed": failed}
    return {"sweep": name, "state": state, "text": " ".join(request.words), **counts}


def sweep_details(path: Path, name: str) -> dict[str, Any]:
    """Return a sweep's row, its settings with means over seeds, and those that no other setting beats."""
    row = sweep_row(path, name)
    if row["state"] == "damaged":
        return {**row, "settings": [], "metric": None}
    results = counted(read_results(path))
    qualities = [each.figures.quality for each in results if each.figures]
    there = {key for quality in qualities for key, value in quality.items() if value is not None}
    metric = SweepRequest.read(path)[0].metric or next((key for key in ("auc", "rmse") if key in there), "loss")
    settings = settings_of([outcome.point for outcome in results])
    figures = {setting: _by_seed(results, setting) for setting in settings}
    failed = {s: sum(o.error is not None for o in results if o.point.setting == s) for s in settings}
    rows = compare(figures, failed, {}, [metric])
    spots = [_spot(each, metric, rows) for each in rows]
    runs = {Path(name, outcome.run_dir).as_posix(): outcome.point.label for outcome in results}
    return {**row, "metric": metric, "settings": spots, "labels": runs}


def _by_seed(results: Sequence[PointOutcome], setting: Any) -> dict[str, Any]:
    return {each.repetition: each.figures for each in results if each.point.setting == setting and each.figures}


def _spot(row: Row, metric: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a setting for the picture; it is on the frontier if none is faster and at least as good."""
    speed, quality, aim = row.samples_per_s, row.main_metric, aim_of(metric)
    beaten = speed is None or quality is None or any(
        other.samples_per_s is not None and other.main_metric is not None
        and other.samples_per_s.mean >= speed.mean
        and goodness(aim, other.main_metric.mean) >= goodness(aim, quality.mean)
        and (other.samples_per_s.mean, other.main_metric.mean) != (speed.mean, quality.mean)
        for other in rows
    )  # fmt: skip
    numbers = {"speed": _mean(speed), "quality": _mean(quality), "finished": row.finished, "failed": row.failed}
    return {"setting": name_setting(row.setting), "label": short_name(row.setting), **numbers, "is_best": not beaten}


def _mean(mean: Mean | None) -> dict[str, float | None] | None:
    return None if mean is None else {"mean": mean.mean, "margin": mean.margin}
