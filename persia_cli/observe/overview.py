"""An overview of several runs: a summary of each, and the settings in which they differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from persia_cli.config.explain import leaves
from persia_cli.config.record import POINTS, SWEEP
from persia_cli.config.schema import Run
from persia_cli.errors import PersiaError
from persia_cli.metric import FIGURES
from persia_cli.observe.history import CONFIG, RunHistory, read_history, recoveries_in
from persia_cli.observe.remote_records import records_at
from persia_cli.storage.locations import Location, address_of
from persia_cli.store.checkpoints.manifest import checkpoints_of, finished_steps


@dataclass(frozen=True)
class Summary:
    """The summary of a run; values that its record does not have are None."""

    run_dir: str
    state: str
    """`done`, `failed`, `stopped`, `dead`, `running`, `silent`, or `damaged` if the record cannot be read."""
    note: str = ""
    """Sentence about its end, if there is one."""
    began_s: float | None = None
    """Start of training, seconds since 1970."""
    took_s: float | None = None
    """Seconds from the start of training to the last line of the record."""
    model: str | None = None
    mode: str | None = None
    step: int | None = None
    """Last step in the record."""
    auc: dict[str, float | None] | None = None
    """AUC of each label that has one, in the evaluation that counts for the run, or of training without any."""
    log_loss: dict[str, float | None] | None = None
    """Log loss of each label in the same evaluation."""
    judged_step: int | None = None
    """Step of that evaluation: the one the run chose itself, else the first of the best AUC, or of the best RMSE if
    no label has an AUC; None without any."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the complete checkpoints, ascending."""
    recoveries: int = 0
    """Deaths of processes that the job outlived."""
    rmse: dict[str, float | None] | None = None
    """Root mean squared error of each label that is a number, in the same evaluation."""


def summaries(folder: Path, now: float) -> list[Summary]:
    """Return a summary of each run directly in a folder, or of a sweep, newest first; `now` in seconds since 1970."""
    if (folder / SWEEP).is_file():
        folder = folder / POINTS
    return _newest_first([summarize(path.parent, now) for path in folder.glob(f"*/{CONFIG}")])


def summaries_at(location: Location, now: float) -> list[Summary]:
    """Return the same for the run whose checkpoints are in a folder at a URI, or for the runs in that."""
    with records_at(location) as records:
        return _newest_first(
            [
                replace(
                    summarize(folder, now),
                    run_dir=address_of(checkpoints),
                    checkpoints=tuple(finished_steps(checkpoints)),
                )
                for folder, checkpoints in records.items()
            ]
        )


def _newest_first(summaries_there: Sequence[Summary]) -> list[Summary]:
    return sorted(summaries_there, key=lambda summary: (-(summary.began_s or 0.0), summary.run_dir))


def summarize(run_dir: Path, now: float) -> Summary:
    """Return the summary of a run, even if its record cannot be read."""
    try:
        history = read_history(run_dir)
    except PersiaError as error:
        return Summary(str(run_dir), "damaged", str(error).splitlines()[0])
    outcome = history.outcome(now)
    began, last = history.begin_s, history.end_s
    judged = history.judged
    last_line = next(iter([*history.training[-1:], *history.evaluations[-1:]]), None)
    line = judged or last_line
    return Summary(
        run_dir=str(run_dir),
        state=outcome.state,
        note=outcome.text,
        began_s=began,
        took_s=None if began is None or last is None else last - began,
        model=history.run.model.kind,
        mode=history.run.mode.kind,
        step=None if last_line is None else last_line["step"],
        auc=None if line is None else _by_label(history, line, "auc"),
        log_loss=None if line is None else _by_label(history, line, "log_loss"),
        rmse=None if line is None else _by_label(history, line, "rmse"),
        judged_step=None if judged is None else judged["step"],
        checkpoints=_saved_steps(history),
        recoveries=len(recoveries_in(history.events)),
    )


def _saved_steps(history: RunHistory) -> tuple[int, ...]:
    """Return the steps of the run's checkpoints; of those at a URI, which may take long to answer, the last saved."""
    path, last = history.run.checkpoint.path, history.last_event("saved")
    if path is not None and "://" in path:
        return (last["step"],) if last else ()
    return tuple(finished_steps(checkpoints_of(history.run_dir, path)))


def differing_settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings that differ between runs, with the value in each run as JSON; `-` if a run has none."""
    dumped = [run.model_dump(mode="json") for run in runs]
    flat = [{key: json.dumps(value) for top in run for key, value in leaves(top, run[top])} for run in dumped]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key, "-") for settings in flat] for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def _by_label(history: RunHistory, line: Mapping[str, Any], metric: str) -> dict[str, float | None]:
    """Return a metric of each label that has it."""
    labels = [label for label, link in history.links.items() if metric in FIGURES[link]]
    return {label: history.metric(line, metric, label) for label in labels}
