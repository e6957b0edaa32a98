"""A prediction: the scores of all ranks, in the order of the data, go into one file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.control.position import EVAL, StepGrid
from persia_cli.data.read.predictions import predictions
from persia_cli.data.read.scores_file import open_scores
from persia_cli.errors import WireError
from persia_cli.observe.scores import ScoreHistogram, quantile
from persia_cli.plan.job import Job
from persia_cli.wire.message import BatchId

Logits = NDArray[np.float32]

AHEAD = 4096
"""Steps of a rank that wait for the other ranks: more than loaders send ahead of the slowest one."""

QUANTILES = {"p1": 0.01, "p25": 0.25, "median": 0.5, "p75": 0.75, "p99": 0.99}


class Scoring:
    """Writes one file of scores."""

    def __init__(self, run: Run, job: Job) -> None:
        """Begin the file; raises DataError or UserError if its columns cannot be read or written."""
        assert isinstance(run.dataset, ParquetDataset)
        self._links = run.links
        self._path = Path(job.output)
        self._file = open_scores(run.dataset, self._path, run.links, job.keep, job.logits, job.overwrite)
        self._grid = StepGrid(job.eval_rows, run.train.batch_size, run.cluster.nn_workers)
        self._waiting: dict[tuple[int, int], Logits] = {}
        self._next = (0, 0)
        """The step and rank that comes next in the file."""
        self._histogram = ScoreHistogram(len(self._links))
        self._sums = np.zeros(len(self._links))
        """Sum of each label's predictions."""

    @property
    def rows(self) -> int:
        """Rows scored so far, but for those that wait for a slower rank."""
        return self._file.rows

    def add(self, batch: BatchId, logits: Logits) -> None:
        """Take the logits [n, T] of a batch and write what is complete now; a repeat changes nothing.

        Raises what ScoresFile.add does.
        """
        key = (batch.step, batch.rank)
        if key < self._next or key in self._waiting:
            return
        self._waiting[key] = logits.copy()  # the buffer is the wire's
        while self._next in self._waiting:
            done = self._waiting.pop(self._next)
            self._histogram.add(done, np.zeros_like(done))
            for task, link in enumerate(self._links.values()):
                self._sums[task] += predictions(done[:, task].astype(np.float64), link).sum()
            self._file.add(done)
            step, written = self._next
            self._next = (step, written + 1) if written + 1 < self._grid.world_size else (step + 1, 0)

    def publish(self) -> dict[str, Any]:
        """Give the file its name; return path and rows, and how the predictions of each label are spread."""
        self._file.publish()
        spread = {
            label: {"mean": float(self._sums[task]) / self.rows if self.rows else None}
            | {name: quantile(self._histogram, q, task, link) for name, q in QUANTILES.items()}
            for task, (label, link) in enumerate(self._links.items())
        }
        return {"path": str(self._path), "rows": self.rows, "spread": spread}

    def discard(self) -> None:
        """Write no more of the file."""
        self._file.discard()

    def check(self, rank: int, batch: BatchId, logits: Logits) -> None:
        """Raise WireError for scores that a rank of this job cannot have."""
        if batch.split != EVAL or batch.rank != rank or batch.step >= self._grid.steps:
            raise WireError(f"rank {rank} has no scores of step {batch.step} and rank {batch.rank} to give")
        start, stop = self._grid.rows_of(batch.step, batch.rank)
        if logits.shape != (stop - start, len(self._links)):
            raise WireError(f"expected logits {(stop - start, len(self._links))}, received {logits.shape}")
        if not np.isfinite(logits).all():
            raise WireError(f"logits of step {batch.step} and rank {batch.rank} are NaN or infinite")
        if batch.step >= self._next[0] + AHEAD:
            raise WireError(f"scores of step {batch.step} came while those of step {self._next[0]} are awaited")
