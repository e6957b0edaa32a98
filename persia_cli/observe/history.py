"""All that a run directory tells of its run, whether it is over, still going, or failed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import Any

from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.plan.columns import label_names

CONFIG = "config.yaml"
EVALS = "evals"
"""Folder of a run directory that its later evaluations are in."""

SILENT_S = 60.0
"""Seconds without a word after which a run that has not ended may well be dead."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, or that it has not: a word and, where there is more to say, a sentence."""

    state: str
    """`done`, `failed`, `stopped`, `running` or `silent`."""
    text: str = ""


@dataclass(frozen=True)
class RunHistory:
    """The record of one training run."""

    run_dir: Path
    run: Run
    training: list[Line]
    """Lines of metrics of training, in order; `evaluations` are those of evaluation."""
    evaluations: list[Line]
    events: list[Line]
    later: list[tuple[str, Line]]
    """What each `persia eval` of the run found, by the name of its folder, in order."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return label_names(self.run)

    @property
    def lines(self) -> list[Line]:
        """All lines of metrics, as they were written."""
        return list(merge(self.training, self.evaluations, key=lambda line: line["time"]))

    @property
    def begin_s(self) -> float | None:
        """When training began, in seconds since 1970; None if it has not."""
        return next((e["time"] for e in self.events if e.get("phase") == "training"), None)

    @property
    def end_s(self) -> float | None:
        """When the last line was written."""
        last = [*self.lines[-1:], *self.events[-1:]]
        return max((line["time"] for line in last), default=None)

    def outcome(self, now: float) -> Outcome:
        """Say how the run ended; `now` in seconds since 1970."""
        phases = [event for event in self.events if event["event"] == "phase"]
        for event in phases:
            if event["phase"] == "failed":
                return Outcome("failed", event["error"])
            if event["phase"] in ("done", "stopped"):
                return Outcome(event["phase"])
        heard = self.end_s
        if heard is not None and now - heard < SILENT_S:
            return Outcome("running", f"{phases[-1]['phase'] if phases else 'starting'} as this was written")
        when = "" if heard is None else f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(heard))}"
        return Outcome("silent", f"the record has no end, and nothing was written{when}: killed, or stuck")

    def last_event(self, kind: str) -> Line | None:
        """Return the last event of a kind."""
        return next((event for event in reversed(self.events) if event["event"] == kind), None)

    def figure(self, line: Mapping[str, Any], name: str, label: str) -> float | None:
        """Return a figure of one label in a line of metrics; None if it is not there or not defined."""
        value: float | None = line.get(name if len(self.labels) == 1 else f"{name}_{label}")
        return value


def read_history(run_dir: Path) -> RunHistory:
    """Read a run directory; raises UserError if it holds no run, ConfigError if its configuration is damaged."""
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} holds no run: there is no {run_dir / CONFIG}")
    metrics = read_journal(run_dir / METRICS)
    later = [(folder.name, read_journal(folder / METRICS)) for folder in sorted((run_dir / EVALS).glob("*"))]
    return RunHistory(
        run_dir=run_dir,
        run=read_run(run_dir / CONFIG),
        training=_of(metrics, "train"),
        evaluations=_of(metrics, "eval"),
        events=read_journal(run_dir / EVENTS),
        later=[(name, lines[-1]) for name, lines in later if lines],
    )


def _of(metrics: Sequence[Line], split: str) -> list[Line]:
    return [line for line in metrics if line["split"] == split]
