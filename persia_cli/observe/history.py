"""The history of a run, read from its run directory: of a run that has ended, failed or is still running."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from pathlib import Path
from typing import Any

from persia_cli.config import record
from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.metric import HEADLINES, Link, is_of_retrieval
from persia_cli.observe.journal import EVENTS, METRICS, is_being_written, read_journal, understanding
from persia_cli.observe.outcome import as_used, calibration_at, judged_by, speed_of
from persia_cli.plan.columns import label_names

CONFIG = record.CONFIG
EVALS = "evals"
"""Folder of later evaluations in a run directory."""

EARLIER = "earlier"
"""Folder of a run directory; its folders `start`, `start-2`, … have the record of each earlier start."""

COPIED = "copied-from"
"""File of a folder with a copy of a record, which no process writes: the source of the copy."""

ENDS = ("done", "failed", "stopped")
"""Phases that are the last one of a job."""

SILENT_S = 60.0
"""Seconds without a new line after which a run that has not ended is probably dead."""

Line = dict[str, Any]

QUALITY = {
    "auc": "AUC",
    "gauc": "GAUC",
    "pr_auc": "PR-AUC",
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "ne": "NE",
    "calibration": "calibration",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
"""Metrics of an evaluation, and their names in a table."""


def metric_name(key: str) -> str:
    """Return the name of a metric in a table, with its label."""
    metric = next((metric for metric in QUALITY if key == metric or key.startswith(f"{metric}_")), None)
    return key if metric is None else QUALITY[metric] + key.removeprefix(metric).replace("_", " ", 1)


@dataclass(frozen=True)
class RunOutcome:
    """The state of a run and, if there is more to report, a sentence about it."""

    state: str
    """`done`, `failed`, `stopped`, `dead`, `running` or `silent`."""
    text: str = ""


@dataclass(frozen=True)
class RunHistory:
    """The record of one training run."""

    run_dir: Path
    run: Run
    training: list[Line]
    """Lines of training metrics, in order; `evaluations` are those of evaluations."""
    evaluations: list[Line]
    events: list[Line]
    later: list[tuple[str, Line]]
    """Name of the folder and line of metrics of each later `persia eval`, in order."""
    test: Line | None = None
    """The line of the test samples, scored at the end of the training."""
    is_written: bool | None = None
    """True if a process has the record open; None if that is unknown, since it is written on another machine."""
    last_write_s: float | None = None
    """Time of the last write to the record, by this machine's clock: that of the coordinator may be wrong."""
    is_copy: bool = False
    """True for a copy of a record at a URI, which is as old as the newest checkpoint there."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return label_names(self.run)

    @property
    def links(self) -> dict[str, Link]:
        """The link function of each label's predictions."""
        return self.run.links

    @property
    def lines(self) -> list[Line]:
        """All lines of metrics, in the order of writing."""
        return list(merge(self.training, self.evaluations, key=lambda line: line["time"]))

    @property
    def begin_s(self) -> float | None:
        """Start of training in seconds since 1970; None if it has not started."""
        return next((e["time"] for e in self.events if e.get("phase") == "training"), None)

    @property
    def end_s(self) -> float | None:
        """Time of the last line in seconds since 1970."""
        last = [*self.lines[-1:], *self.events[-1:]]
        return max((line["time"] for line in last), default=None)

    def outcome(self, now: float) -> RunOutcome:
        """Return the state of the run; `now` in seconds since 1970."""
        phases = [event for event in self.events if event["event"] == "phase"]
        last_s = self.end_s if self.last_write_s is None else self.last_write_s
        return outcome_by(phases, self.is_written, last_s, self.is_copy, now)

    @property
    def judged(self) -> Line | None:
        """The evaluation that counts for the run: the one it chose itself, else the best by its metric.

        Its metrics are those of the saved model, `as_used`.
        """
        best = self.last_event("best")
        chosen = best["step"] if best else None
        judged = judged_by(self.evaluations, self.run.judging_metric, chosen) if self.evaluations else None
        return None if judged is None else dict(as_used(judged, self.events))

    @property
    def reliability(self) -> Line | None:
        """The reliability diagrams of the evaluation that counts: as for `judged`, those of the saved model."""
        if self.judged is None:
            return None
        step = self.judged["step"]
        diagrams = (
            event for event in reversed(self.events) if event["event"] == "reliability" and event["step"] == step
        )
        if (event := next(diagrams, None)) is None or (calibration := calibration_at(step, self.events)) is None:
            return event
        return event | {"labels": event["labels"] | calibration["reliability"]}

    def last_event(self, kind: str) -> Line | None:
        """Return the last event of a kind."""
        return next((event for event in reversed(self.events) if event["event"] == kind), None)

    def metric(self, line: Mapping[str, Any], name: str, label: str) -> float | None:
        """Return a metric of one label in a line of metrics; None if it is missing or undefined."""
        value: float | None = line.get(name if len(self.labels) == 1 else f"{name}_{label}")
        return value


def outcome_by(
    phases: Sequence[Line], is_written: bool | None, last_s: float | None, is_copy: bool, now: float
) -> RunOutcome:
    """Return the state of a run by its phases, in order, and the time of the last write to its record."""
    # The last one, since a driver may record an end after that of the coordinator, with more information.
    for event in reversed(phases):
        if event["phase"] in ENDS:
            return RunOutcome(event["phase"], event.get("error", ""))
    if is_written is False:
        return RunOutcome("dead", "the record has no end, and no process writes it any more: all were killed")
    if last_s is not None and now - last_s < SILENT_S:
        return RunOutcome("running", f"{phases[-1]['phase'] if phases else 'starting'} as this was written")
    when = "" if last_s is None else f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(last_s))}"
    if is_copy:
        return RunOutcome("silent", f"the record ends with the newest checkpoint: none{when}")
    return RunOutcome("silent", f"the record has no end, and nothing was written{when}: killed, or stuck")


def read_history(run_dir: Path, read: Callable[[Path], list[Line]] = read_journal) -> RunHistory:
    """Return the history in a run directory; raises UserError if there is no run, or its files are damaged.

    `read` is the function that returns all objects of a journal.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} does not contain a run: {run_dir / CONFIG} is missing")
    metrics = read(run_dir / METRICS)
    later = [(folder.name, read(folder / METRICS)) for folder in sorted((run_dir / EVALS).glob("*"))]
    # Checked before and after reading, so that a job that begins or ends meanwhile does not look dead.
    was_written = is_being_written(run_dir / EVENTS)
    events = read(run_dir / EVENTS)
    is_written = was_written or is_being_written(run_dir / EVENTS)
    is_copy = (run_dir / COPIED).exists()
    written = [path.stat().st_mtime for name in (METRICS, EVENTS) if (path := run_dir / name).exists()]
    with understanding(run_dir):
        ours = [event["host"] == socket.gethostname() for event in events if event["event"] == "began"]
        return RunHistory(
            run_dir=run_dir,
            run=_run_of(run_dir / CONFIG, (run_dir / CONFIG).stat().st_mtime_ns),
            training=_of(metrics, "train"),
            evaluations=_of(metrics, "eval"),
            events=events,
            later=[(name, lines[-1]) for name, lines in later if lines],
            test=next(iter(_of(metrics, "test")[-1:]), None),
            is_written=is_written if any(ours) and not is_copy else None,
            last_write_s=None if is_copy else max(written, default=None),
            is_copy=is_copy,
        )


@lru_cache(maxsize=1)
def _run_of(path: Path, written_ns: int) -> Run:
    """Return the run of a file that was written then; parsing it takes longer than all else that is new in a run."""
    return read_run(path)


def _of(metrics: Sequence[Line], split: str) -> list[Line]:
    return [line for line in metrics if line["split"] == split]


def key_metrics(history: RunHistory) -> dict[str, str]:
    """Return metrics of the evaluation that counts for a run and of its test, and speed and staleness of training.

    Without an evaluation, they are those of training so far.
    """
    metrics: dict[str, str] = {}
    judged = history.judged
    scored = [("", judged)] if judged else [(" in training", line) for line in history.training[-1:]]
    if history.test:
        scored.append((" of the test", history.test))
    for of, line in scored:
        for label, link in history.links.items():
            for key in HEADLINES[link]:
                value = history.metric(line, key, label)
                name = QUALITY[key] if len(history.labels) == 1 else f"{QUALITY[key]}, {label}"
                metrics[name + of] = "-" if value is None else f"{value:.4f}"
        metrics |= {key + of: f"{line[key]:.4f}" for key in line if is_of_retrieval(key)}
    if judged:
        metrics["evaluated at step"] = f"{judged['step']:,}"
        for correction in (calibration_at(judged["step"], history.events) or {"labels": ()})["labels"]:
            of = "" if len(history.labels) == 1 else f", {correction['label']}"
            metrics[f"calibrated{of}"] = f"slope {correction['slope']:.3g}, shift {correction['shift']:.3g}"
    best = history.last_event("best")
    if best is not None and metric_name(best["metric"]) not in metrics:
        metrics[f"best {metric_name(best['metric'])}"] = f"{best['value']:.4f} at step {best['step']:,}"
    if history.training:
        last = history.training[-1]
        rate = speed_of(history.training)
        metrics["steps"] = f"{last['step']:,}"
        metrics["samples"] = f"{last['samples']:,}"
        metrics["samples/s"] = "-" if rate is None else f"{rate:,.0f}"
        metrics["max staleness"] = str(max(line["staleness_max"] for line in history.training))
        metrics["rows"] = f"{history.lines[-1]['rows']:,}"
        if peak := max(line.get("gpu_memory", 0) for line in history.training):
            metrics["peak GPU memory"] = f"{peak / 2**20:,.0f} MiB"
    recoveries = len(recoveries_in(history.events))
    if recoveries:
        metrics["recoveries"] = f"{recoveries:,}"
    return metrics


def recoveries_in(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events of the recoveries that are over, in order."""
    return [event for event in events if event["event"] == "recovered"]


DONE_AGAIN = {
    "steps": ("step", "assigned again"),
    "batches": ("batch", "sent again"),
    "requests": ("request", "continued"),
}
"""The work that a recovery repeats: its unit, and how it is repeated."""


def amount(unit: str, number: int) -> str:
    """Return `1 batch` or `12 batches`."""
    return f"{number:,} {unit if number != 1 else DONE_AGAIN[unit][0]}"


def outcome_of(event: Mapping[str, Any]) -> str:
    """Return a sentence about a recovery: its duration, and the repeated work."""
    took = f"after {event['seconds']:.1f} s"
    [(unit, number)] = event["repeated"].items()
    if not number and "checkpoint" not in event:
        return f"{took}; nothing was in progress"
    done = f"after step {event['checkpoint']:,} trained again" if "checkpoint" in event else DONE_AGAIN[unit][1]
    return f"{took}; {amount(unit, number)} {done}"
