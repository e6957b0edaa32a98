"""A run's record, as the coordinator writes it, and its files."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from persia_cli.control.position import StepGrid
from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.observe.record import RunRecord
from tests.support.runs import make_run

GRID = StepGrid(rows=100, batch_size=12, world_size=3)


@dataclass
class Recorded:
    """A record of a job with `ranks` ranks, and its files."""

    folder: Path
    ranks: int = 3
    labels: tuple[str, ...] = ("click",)
    step: int = 0
    samples: int = 0
    window: int = 10
    group_by: str | None = None
    sparse: tuple[str, ...] = ("a",)
    embedding: dict[str, Any] = field(default_factory=dict)
    pin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cluster = {"kind": "local", "nn_workers": self.ranks, "pin": self.pin}
        run = make_run(
            list(self.sparse),
            embedding=self.embedding,
            train={"batch_size": 12},
            cluster=cluster,
            dataset={"labels": self.labels, "group_by": self.group_by},
        )
        self.events, self.metrics = Journal(self.folder / EVENTS), Journal(self.folder / METRICS)
        with mock.patch("persia_cli.observe.record.WINDOW", self.window):
            self.record = RunRecord(self.events, self.metrics, run, GRID, self.step, self.samples)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The metrics without times."""
        lines = read_journal(self.folder / METRICS)
        return [{key: line[key] for key in line if key not in ("time", "samples_per_s")} for line in lines]

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of a kind, without their times."""
        lines = [line for line in read_journal(self.folder / EVENTS) if line["event"] == event]
        return [{key: line[key] for key in line if key not in ("time", "event")} for line in lines]

    @property
    def warnings(self) -> list[str]:
        """The texts of all warnings."""
        return [event["text"] for event in self.told("warning")]


Recording = Callable[..., Recorded]
