"""A prediction: the scores of all ranks are written to one file, in the order of the data."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.control.position import EVAL, StepGrid
from persia_cli.data.read.predictions import predictions
from persia_cli.data.read.scores_file import ScoresFile
from persia_cli.errors import WireError
from persia_cli.observe.scores import ScoreHistogram, quantile
from persia_cli.plan.job import Job
from persia_cli.wire.message import BatchId

Logits = NDArray[np.float32]

AHEAD = 4096
"""Maximum number of steps that a rank is ahead: more than loaders send ahead of the slowest rank."""

QUANTILES = {"p1": 0.01, "p25": 0.25, "median": 0.5, "p75": 0.75, "p99": 0.99}


class Scoring:
    """The file of scores of one prediction."""

    def __init__(self, run: Run, job: Job) -> None:
        """Begin the file; raise DataError or UserError if its columns cannot be read or written."""
        assert isinstance(run.dataset, ParquetDataset)
        self._links = run.links
        self._path = Path(job.output)
        self._file = ScoresFile(run.dataset, self._path, run.links, job.keep, job.logits)
        self._grid = StepGrid(job.eval_rows, run.train.batch, run.cluster.nn_workers)
        self._waiting: dict[tuple[int, int], Logits] = {}
        self._next = (0, 0)
        """The step and rank that comes next in the file."""
        self._histogram = ScoreHistogram(len(self._links))
        self._sums = np.zeros(len(self._links))
        """Sum of the predictions of each label."""

    @property
    def rows(self) -> int:
        """Rows scored so far, without those that wait for a slower rank."""
        return self._file.rows

    def add(self, batch: BatchId, logits: Logits) -> None:
        """Add the logits [n, T] of a batch, and write all that are next in order; a repeat changes nothing.

        Raise the errors of ScoresFile.add.
        """
        key = (batch.step, batch.rank)
        if key < self._next or key in self._waiting:
            return
        self._waiting[key] = logits.copy()  # the wire reuses the buffer
        while self._next in self._waiting:
            done = self._waiting.pop(self._next)
            self._histogram.add(done, np.zeros_like(done))
            for task, link in enumerate(self._links.values()):
                self._sums[task] += predictions(done[:, task].astype(np.float64), link).sum()
            self._file.add(done)
            step, written = self._next
            self._next = (step, written + 1) if written + 1 < self._grid.world_size else (step + 1, 0)

    def publish(self) -> dict[str, Any]:
        """Give the file its name; return path, rows, and mean and quantiles of the predictions of each label."""
        self._file.publish()
        spread = {
            label: {"mean": float(self._sums[task]) / self.rows if self.rows else None}
            | {name: quantile(self._histogram, q, task, link) for name, q in QUANTILES.items()}
            for task, (label, link) in enumerate(self._links.items())
        }
        return {"path": str(self._path), "rows": self.rows, "spread": spread}

    def discard(self) -> None:
        """Delete the unfinished file."""
        self._file.discard()

    def check(self, rank: int, batch: BatchId, logits: Logits) -> None:
        """Raise WireError for scores that this rank cannot have."""
        if batch.split != EVAL or batch.rank != rank or batch.step >= self._grid.steps:
            raise WireError(f"rank {rank} must not send scores of step {batch.step} and rank {batch.rank}")
        start, stop = self._grid.rows_of(batch.step, batch.rank)
        if logits.shape != (stop - start, len(self._links)):
            raise WireError(f"expected logits {(stop - start, len(self._links))}, received {logits.shape}")
        if not np.isfinite(logits).all():
            raise WireError(f"logits of step {batch.step} and rank {batch.rank} are NaN or infinite")
        if batch.step >= self._next[0] + AHEAD:
            raise WireError(f"scores of step {batch.step} arrived while the next step in order is {self._next[0]}")
