"""A run in the list of runs: its state and main metrics, kept up to date by reading only what is new."""

import re
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from persia_cli.config.record import CONFIG
from persia_cli.config.schema.metric import aim_of, goodness
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.lines import TRAIN, Position, lines_with, objects, read_new
from persia_cli.errors import UserError
from persia_cli.observe.history import COPIED, ENDS, outcome_by
from persia_cli.observe.journal import EVENTS, METRICS, is_being_written
from persia_cli.observe.outcome import speed_of

GLANCE_BYTES = 32_768
"""Bytes at the end of a journal that a first look reads; they hold the last 50 lines or more."""
RECENT_LINES = 50
"""Lines of training over which the speed of a run is shown."""
KINDS = (b'"event": "phase"', b'"event": "began"', b'"event": "best"')
SCORED = b'"split": "eval"'
_SECTIONS = re.compile(r"^(?:name|model|mode):.*\n(?:[ -].*\n)*", re.MULTILINE)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
    """Speed over the last lines of training."""
    metric: str | None = None
    """The metric of `best`: the one that the run judges by, else AUC, RMSE or loss; the mean over labels."""
    best: float | None = None
    best_step: int | None = None
    began_s: float | None = None
    last_s: float | None = None


class WatchedRun:
    """The row of a run; each call reads the lines that were written since the one before."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._path, self._name = folder, folder.root / name, name
        self._metrics, self._events = Position(), Position()
        self._seen: object = None
        self._row = RunRow(name, "silent")
        self._forget()

    def _forget(self) -> None:
        """Begin again, since the record has been replaced by that of another start."""
        self._config: dict[str, Any] = {}
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_LINES)
        self._best: tuple[str, float, int] | None = None
        self._chosen: tuple[str, float, int] | None = None
        self._began_s: float | None = None
        self._is_ours = False
        self._phase: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None

    def row(self, now: float, most: int | None = None) -> RunRow:
        """Return the row; with `most`, from so many bytes at the end of each journal. `now` in seconds since 1970."""
        seen = [_signature(self._path / name) for name in (CONFIG, METRICS, EVENTS)]
        if seen != self._seen or self._row.state not in ENDS:
            try:
                if seen != self._seen:
                    self._folder.run(self._name)
                    self._read(most)
                self._row = self._make(now, max((each[2] for each in seen[1:] if each), default=None))
            except (KeyError, TypeError, ValueError, AttributeError, OSError, yaml.YAMLError, UserError) as error:
                text = f"the record cannot be read: {type(error).__name__}: {error}"
                self._row = RunRow(self._name, "damaged", text.splitlines()[0])
            self._seen = seen
        return self._row

    def _read(self, most: int | None) -> None:
        events, at = read_new(self._path / EVENTS, self._events, most)
        metrics, metrics_at = read_new(self._path / METRICS, self._metrics, most)
        before = (self._events.file, self._metrics.file)
        if any(old and old != new for old, new in zip(before, (at.file, metrics_at.file), strict=True)):
            self._metrics = self._events = Position()
            self._forget()
            return self._read(most)
        self._events, self._metrics = at, metrics_at
        text = (self._path / CONFIG).read_text(encoding="utf-8")
        self._config = yaml.load("".join(_SECTIONS.findall(text)), _LOADER) or {}
        for event in objects(lines_with(events, *KINDS)):
            self._take_event(event)
        for line in objects(lines_with(metrics, SCORED)):
            if (found := _headline(line)) and (self._best is None or _is_better(found, self._best)):
                self._best = found
        for line in objects(lines_with(metrics[-GLANCE_BYTES:], TRAIN)):
            self._recent.append({key: line[key] for key in ("time", "step", "samples", "samples_per_s")})
        return None

    def _take_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "began":
            self._is_ours = self._is_ours or event["host"] == socket.gethostname()
        elif event["event"] == "best":
            self._chosen = event["metric"], event["value"], event["step"]
        else:
            self._phase = dict(event)
            if event["phase"] in ENDS:
                self._end = self._phase
            if event["phase"] == "training" and self._began_s is None:
                self._began_s = event["time"]

    def _make(self, now: float, written_s: float | None) -> RunRow:
        is_copy = (self._path / COPIED).exists()
        is_written = is_being_written(self._path / EVENTS) if self._is_ours and not is_copy else None
        phases = [each for each in (self._phase, self._end) if each is not None]
        outcome = outcome_by(phases, is_written, None if is_copy else written_s, is_copy, now)
        last = self._recent[-1] if self._recent else None
        metric, best, step = self._chosen or self._best or (None, None, None)
        return RunRow(
            run=self._name,
            state=outcome.state,
            text=outcome.text,
            name=self._config.get("name"),
            model=self._config.get("model", {}).get("kind"),
            mode=self._config.get("mode", {}).get("kind"),
            step=last["step"] if last else None,
            samples_per_s=(speed_of(list(self._recent)) or last["samples_per_s"]) if last else None,
            metric=metric,
            best=best,
            best_step=step,
            began_s=self._began_s,
            last_s=last["time"] if last else self._began_s,
        )


def glance(folder: Folder, name: str) -> RunRow:
    """Return the row of a run without its best evaluation, from the ends of its journals."""
    return WatchedRun(folder, name).row(time.time(), GLANCE_BYTES)


def _signature(path: Path) -> tuple[int, int, float] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime
    return None


def _headline(line: Mapping[str, Any]) -> tuple[str, float, int] | None:
    """Return the metric by which an evaluation is shown, its value as mean over labels, and the step."""
    for metric in ("auc", "rmse", "loss"):
        values = [value for key, value in line.items() if key == metric or key.startswith(f"{metric}_")]
        if values:
            return None if None in values else (metric, fmean(values), line["step"])
    return None


def _is_better(found: tuple[str, float, int], best: tuple[str, float, int]) -> bool:
    aim = aim_of(found[0])
    return goodness(aim, found[1]) > goodness(aim, best[1])
