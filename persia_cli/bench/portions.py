"""Batches for a trainer in one process: samples, and row numbers of one table that joins all tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import GeneratedDataset, ParquetDataset, Run
from persia_cli.data.batch import Batch
from persia_cli.data.source import open_source, uses_stand_in
from persia_cli.errors import UserError
from persia_cli.plan.columns import dense_count, label_names


@dataclass(frozen=True, slots=True)
class Portion:
    """A batch: dense float32 [n, D], labels float32 [n, T], weights float32 [n] or none, rows int64 [n, F]."""

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PortionShape:
    """Sizes of a portion's arrays, which determine its bytes in messages."""

    samples: int
    dense: int
    tasks: int
    weighted: bool
    sizes: tuple[int, ...]
    """Rows of each feature's table."""

    @property
    def nbytes(self) -> int:
        """Bytes of a portion."""
        return self.samples * (4 * (self.dense + self.tasks + self.weighted) + 8 * len(self.sizes))

    def portion(self, batch: Batch) -> Portion:
        """Return a batch as a portion; ids beyond a table's size are folded into it. Raises UserError for lists."""
        if batch.ids.size != batch.size * batch.features or not (np.diff(batch.offsets.astype(np.int64)) == 1).all():
            raise UserError("plain torch is compared on features of one id per sample; this data set has lists of ids")
        sizes = np.array(self.sizes, np.uint64).reshape(-1, 1)
        starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64).reshape(-1, 1)
        ids = (batch.ids.reshape(batch.features, -1) % sizes).astype(np.int64) + starts
        weights = np.empty(0, np.float32) if batch.weights is None else batch.weights
        return Portion(batch.dense, batch.labels, weights, np.ascontiguousarray(ids.T))

    def split(self, block: NDArray[np.uint8]) -> Portion:
        """Return the portion stored in `block`, one array after the other."""
        n, features = self.samples, len(self.sizes)
        sizes = [8 * n * features, 4 * n * self.dense, 4 * n * self.tasks, 4 * n * self.weighted]
        rows, dense, labels, weights = np.split(block, np.cumsum(sizes)[:-1])
        return Portion(
            dense.view(np.float32).reshape(n, self.dense),
            labels.view(np.float32).reshape(n, self.tasks),
            weights.view(np.float32),
            rows.view(np.int64).reshape(n, features),
        )


class Portions(Protocol):
    """An endless sequence of portions."""

    def take(self) -> Portion:
        """Return the next portion."""


def portion_shape(run: Run) -> PortionShape:
    """Return the shape of a run's batches; raises UserError if the sizes of torch's tables are unknown."""
    dataset = run.dataset
    weighted = isinstance(dataset, ParquetDataset) and dataset.weight is not None and not uses_stand_in(dataset)
    return PortionShape(run.train.batch_size, dense_count(run), len(label_names(run)), weighted, _table_sizes(run))


def _table_sizes(run: Run) -> tuple[int, ...]:
    dataset = run.dataset
    generator = dataset.generator if isinstance(dataset, GeneratedDataset) else dataset.stand_in
    if generator is None:
        raise UserError(
            "plain torch needs the size of every table in advance: set dataset.stand_in.cardinalities, "
            "or compare with dense only"
        )
    return generator.cardinalities


class RingPortions:
    """The same first batches of the training split that a job's ring repeats, as portions in memory."""

    def __init__(self, run: Run, shape: PortionShape, batches: int) -> None:
        source = open_source(run.dataset, "train", run.seed)
        try:
            spans = [(slot * shape.samples, (slot + 1) * shape.samples) for slot in range(batches)]
            self._portions: Sequence[Portion] = [shape.portion(source.read(0, *span)) for span in spans]
        finally:
            source.close()
        self._next = 0

    def take(self) -> Portion:
        """Return the next portion of the ring."""
        portion = self._portions[self._next % len(self._portions)]
        self._next += 1
        return portion
