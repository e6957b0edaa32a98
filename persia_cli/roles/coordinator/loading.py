"""The coordinator's part in loading: it knows how many rows the servers must have before the job begins."""

import time
from dataclasses import asdict
from typing import Any

from persia_cli.config.schema import Run
from persia_cli.observe.journal import Journal
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.plan.warm_start import WarmStart
from persia_cli.roles.coordinator.reporting import Pace
from persia_cli.storage.remote import without_secret
from persia_cli.store.checkpoints.manifest import Manifest

UNKNOWN = {"taken": None, "new": None, "unused": None, "states": None}
"""The dense weights where the machine of the coordinator cannot compare them."""


class Loading:
    """Counts the rows of a checkpoint, or of what a run begins with, as the servers load them."""

    def __init__(self, run: Run, job: Job, loaded: Manifest | None, events: Journal) -> None:
        """`loaded` is the manifest of the checkpoint that the job loads whole."""
        self._source = job.load or "init_from"
        self._events = events
        self._wanted = 0
        if loaded is not None:
            self._wanted = loaded.row_count(embedding_layout(run).dense_group is not None)
        elif job.warm is not None:
            self._wanted = job.warm.rows
            events.write(event="warm_start", **as_event(job.warm))
        self._pace = Pace(self._wanted, time.monotonic())
        self._under_way: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def note(self, name: str, rows: int) -> None:
        """Note how many rows a server has loaded so far; now and then, say how many all have."""
        self._under_way[name] = rows
        together = sum((self._under_way | self._done).values())
        if 0 < together < self._wanted and (line := self._pace.line(together, time.monotonic())):
            self._events.write(event="progress", doing="loading", **line)

    def finish(self, name: str, rows: int) -> None:
        """Note that a replica is ready, with so many rows."""
        self._done[name] = rows

    def complaint(self) -> str | None:
        """Return a sentence if the servers, which are all ready, do not have all rows."""
        loaded = sum(self._done.values())
        if loaded == self._wanted:
            return None
        return f"of {self._wanted:,} rows of {self._source} only {loaded:,} were loaded; use another checkpoint"


def as_event(warm: WarmStart) -> dict[str, Any]:
    """Return the keys of the event that records what a run begins with."""
    fit = warm.fit
    return {
        "checkpoint": warm.checkpoint and without_secret(warm.checkpoint),
        "step": warm.step,
        "tables": [
            {"table": each.name, "from": each.source, "rows": each.rows, "states": each.states} for each in warm.tables
        ],
        "vectors": [
            {"table": each.name, "from": without_secret(each.path), "rows": each.rows} for each in warm.vectors
        ],
        "new": list(warm.new),
        "unused": list(warm.unused),
        "dense": (asdict(fit) if fit else UNKNOWN) if warm.dense else None,
    }
