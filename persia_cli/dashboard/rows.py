"""A row of the list of runs, from the ends of a run's journals, and its best evaluation, from all of them."""

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from persia_cli.config.record import CONFIG
from persia_cli.config.schema.metric import aim_of, goodness
from persia_cli.dashboard.lines import TRAIN, lines_with, objects
from persia_cli.observe.history import COPIED, ENDS, outcome_by
from persia_cli.observe.journal import EVENTS, METRICS, is_being_written
from persia_cli.observe.outcome import speed_of

HEAD_BYTES, TAIL_BYTES = 8192, 32_768
"""Bytes of a journal that a row needs: the begin of the events, the end of both; it has about 50 lines of training."""
KINDS = (b'"event": "phase"', b'"event": "began"', b'"event": "best"')
_SECTIONS = re.compile(r"^(?:name|model|mode):.*\n(?:[ -].*\n)*", re.MULTILINE)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Score = tuple[str, float, int]
"""A metric, the mean of its values over labels, and the step of the evaluation."""


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
    best: Score | None = None
    """The evaluation that the run chose, else the best by AUC, RMSE or loss."""
    began_s: float | None = None
    last_s: float | None = None


def read_row(path: Path, name: str, now: float, whole: bool) -> RunRow:
    """Return the row of a run; without `whole`, the best evaluation is that of the last lines."""
    try:
        text = (path / CONFIG).read_text(encoding="utf-8")
        config = yaml.load("".join(_SECTIONS.findall(text)), _LOADER) or {}
        events = list(objects(lines_with(_ends(path / EVENTS, HEAD_BYTES), *KINDS)))
        lines = list(objects(lines_with(_ends(path / METRICS), TRAIN)))
        last = lines[-1] if lines else None
        scored = (path / METRICS).read_bytes() if whole and lines else _ends(path / METRICS)
        phases = [event for event in events if event["event"] == "phase"]
        began_s = next((event["time"] for event in phases if event["phase"] == "training"), None)
        return RunRow(
            name,
            *_outcome(path, events, phases, now),
            config.get("name"),
            config.get("model", {}).get("kind"),
            config.get("mode", {}).get("kind"),
            step=last["step"] if last else None,
            samples_per_s=(speed_of(lines) or last["samples_per_s"]) if last else None,
            best=_chosen(events) or best_of(map(_score, objects(lines_with(scored, b'"split": "eval"')))),
            began_s=began_s,
            last_s=last["time"] if last else began_s,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError, yaml.YAMLError) as error:
        return RunRow(name, "damaged", f"the record cannot be read: {type(error).__name__}: {error}".splitlines()[0])


def best_of(scores: Iterable[Score | None]) -> Score | None:
    """Return the best of scores; None are left out."""
    found = [score for score in scores if score is not None]
    return max(found, key=lambda score: goodness(aim_of(score[0]), score[1]), default=None)


def _outcome(path: Path, events: Sequence[Any], phases: Sequence[Any], now: float) -> tuple[str, str]:
    is_copy = (path / COPIED).exists()
    is_ours = any(event["event"] == "began" and event["host"] == socket.gethostname() for event in events)
    is_ended = any(event["phase"] in ENDS for event in phases)
    is_written = is_being_written(path / EVENTS) if is_ours and not is_copy and not is_ended else None
    written = [file.stat().st_mtime for file in (path / METRICS, path / EVENTS) if file.exists()]
    outcome = outcome_by(phases, is_written, None if is_copy else max(written, default=None), is_copy, now)
    return outcome.state, outcome.text


def _ends(path: Path, head_bytes: int = 0) -> bytes:
    """Return the complete lines at the end of a file, and in its first bytes; none if it is missing."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(size if size <= head_bytes + TAIL_BYTES else head_bytes)
        file.seek(max(len(head), size - TAIL_BYTES))
        tail = file.read(TAIL_BYTES)
    if len(head) + len(tail) < size:
        head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
    both = head + tail
    return both[: both.rfind(b"\n") + 1]


def _chosen(events: Sequence[Mapping[str, Any]]) -> Score | None:
    best = [event for event in events if event["event"] == "best"]
    return (best[-1]["metric"], best[-1]["value"], best[-1]["step"]) if best else None


def _score(line: Mapping[str, Any]) -> Score | None:
    for metric in ("auc", "rmse", "loss"):
        values = [value for key, value in line.items() if key == metric or key.startswith(f"{metric}_")]
        if values:
            return None if None in values else (metric, fmean(values), line["step"])
    return None
