"""A row of the list of runs, from the ends of a run's journals."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from persia_cli.config.record import CONFIG, plain_yaml
from persia_cli.dashboard.curves import TRAIN, thinned
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.logs import last_lines
from persia_cli.disk import read_regular
from persia_cli.errors import UserError
from persia_cli.metric import aim_of
from persia_cli.observe.history import COPIED, Line, metric_name, outcome_by
from persia_cli.observe.journal import EVENTS, METRICS, is_being_written, object_of
from persia_cli.observe.outcome import quality_in, speed_of

EVENT_BYTES, METRIC_BYTES = 1 << 24, 1 << 18
"""Bytes at the end of a journal that are read: of metrics hundreds of lines."""
KINDS = (b'"event": "began"', b'"event": "phase"', b'"event": "best"')
EVAL = b'"split": "eval"'
LONGEST = 200
"""Maximum number of characters of a name."""
RECENT, SPARKS = 50, 40
"""Lines of training that the speed is of, and evaluations of a curve."""
_SECTIONS = re.compile(r"^(?:name|model|mode):.*\n(?:[ -].*\n)*", re.MULTILINE)

Score = tuple[str, float | None, int]
"""AUC, RMSE, loss or another metric, its mean over labels, and the step of the evaluation."""


@dataclass(frozen=True)
class RunRow:
    """A row of the list; values that the record does not have are None."""

    run: str
    state: str
    """As of `persia_cli.observe.history.RunOutcome`, or `damaged`."""
    text: str = ""
    name: str | None = None
    model: str | None = None
    mode: str | None = None
    step: int | None = None
    samples_per_s: float | None = None
    score: Score | None = None
    """The evaluation that the run chose, else the last one."""
    spark: tuple[float, ...] = ()
    """The same metric of the evaluations so far, of many only some."""
    metric: str = ""
    """The name of the metric."""
    is_low: bool = False
    """True if low values of the metric are better."""
    began_s: float | None = None
    last_s: float | None = None


def read_row(folder: Folder, name: str, now: float) -> RunRow:
    """Return the row of a run, whose files are read again only when they change."""
    try:
        path = folder.run(name)
        found = [file.stat() for each in (CONFIG, EVENTS, METRICS) if (file := path / each).exists()]
        row, events = _record(path, tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found))
        is_copy = (path / COPIED).exists()
        is_here = any(event["event"] == "began" and event["host"] == socket.gethostname() for event in events)
        outcome = outcome_by(
            [event for event in events if event["event"] == "phase"],
            is_being_written(path / EVENTS) if is_here and not is_copy else None,
            max((each.st_mtime for each in found[1:]), default=None) if not is_copy else None,
            is_copy,
            now,
        )
        return replace(row, run=name, state=outcome.state, text=outcome.text)
    except (UserError, KeyError, IndexError, TypeError, ValueError, AttributeError, OSError, yaml.YAMLError) as error:
        return RunRow(name, "damaged", f"the record cannot be read: {type(error).__name__}: {error}".splitlines()[0])


@lru_cache(maxsize=4096)
def _record(path: Path, written: tuple[tuple[int, int, int], ...]) -> tuple[RunRow, list[Line]]:
    """Return the row, without a state, of a run whose files have these inodes, sizes and times, and its events."""
    config = plain_yaml("".join(_SECTIONS.findall(read_regular(path / CONFIG).decode()))) or {}
    reported, lines = last_lines(path / EVENTS, EVENT_BYTES), last_lines(path / METRICS, METRIC_BYTES)
    events = [event for kind in KINDS for event in _objects(reported, kind)]
    training = _objects([line for line in lines if TRAIN in line][-RECENT:], TRAIN)
    evaluations = _objects(thinned([line for line in lines if EVAL in line], SPARKS), EVAL)
    scores = [
        *map(_score, evaluations[-1:]),
        *((event["metric"], event["value"], event["step"]) for event in events if event["event"] == "best"),
    ]
    metric = scores[-1][0] if scores else "loss"
    values = [quality_in(line).get(metric) for line in evaluations]
    last = training[-1] if training else {}
    began_s = next((event["time"] for event in events if event.get("phase") == "training"), None)
    row = RunRow(
        run="",
        state="",
        name=_short(config.get("name")),
        model=_short(config.get("model", {}).get("kind")),
        mode=_short(config.get("mode", {}).get("kind")),
        step=last.get("step"),
        samples_per_s=speed_of(training) or last.get("samples_per_s"),
        score=scores[-1] if scores else None,
        spark=tuple(value for value in values if value is not None),
        metric=metric_name(metric),
        is_low=aim_of(metric) == "low",
        began_s=began_s,
        last_s=last.get("time", began_s),
    )
    return row, events


def _short(value: Any) -> str | None:
    """Return a value as the text of a cell."""
    return None if value is None else str(value)[:LONGEST]


def _objects(lines: Sequence[bytes], part: bytes) -> list[Line]:
    """Return the objects of the lines that contain a text; damaged lines are left out."""
    return [found for line in lines if part in line and (found := object_of(line))]


def _score(line: Line) -> Score:
    quality = quality_in(line)
    metric = next((name for name in ("auc", "rmse") if name in quality), "loss")
    return metric, quality[metric], line["step"]
