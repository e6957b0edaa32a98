"""The frequency of ids in a sample of the training rows: the unique ids of a batch."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.plan.columns import sparse_features

SAMPLE = 1 << 15
"""Rows of the sample, if there are so many."""
FIRST = 64
MIN_ROWS = 4 * FIRST
Column = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""The ids of a feature, and the end of each sample among them."""


@dataclass(frozen=True, slots=True)
class Frequency:
    """The curves of a sample of rows; numbers beyond it are predicted from its last two points."""

    ids: dict[str, float]
    """Ids of a sample by table."""
    sizes: tuple[int, ...]
    """Samples of a batch."""
    unique: dict[str, tuple[float, ...]]
    """Mean unique ids of batches of these sizes, by table."""

    def unique_ids(self, table: str, samples: float) -> float:
        """Return the unique ids of a table in a batch, interpolated between sizes by their logarithms."""
        points = self.unique[table]
        after = min(max(1, bisect_left(self.sizes, samples)), len(points) - 1)
        low, high = after - 1, after
        slope = math.log(points[high] / points[low]) / math.log(self.sizes[high] / self.sizes[low])
        value = points[low] * (samples / self.sizes[low]) ** slope
        return min(value, samples * self.ids[table]) if samples else 0.0


def sample_frequency(run: Run) -> Frequency:
    """Read a sample of the training rows and count its ids; raises DataError if there are too few rows."""
    source = open_source(run.dataset, "train", run.seed, run.links)
    try:
        rows = min(SAMPLE, source.rows)
        if rows < MIN_ROWS:
            raise DataError(
                f"the data set has {source.rows:,} training rows, and unique ids of batches are counted in {MIN_ROWS:,}"
            )
        batch = source.read(0, 0, rows)
    finally:
        source.close()
    return frequency_of(_columns(run, batch), rows)


def frequency_of(columns: dict[str, list[Column]], rows: int) -> Frequency:
    """Return the curves of the ids of each table's features."""
    sizes = [FIRST << power for power in range((rows // FIRST).bit_length())]
    unique, ids = {}, {}
    for table, features in columns.items():
        ids[table] = sum(values.size for values, _ in features) / rows
        unique[table] = tuple(_mean_unique(features, size, rows) for size in sizes)
    return Frequency(ids, tuple(sizes), unique)


def _columns(run: Run, batch: Batch) -> dict[str, list[Column]]:
    columns: dict[str, list[Column]] = {}
    offsets = batch.offsets.astype(np.int64)
    for number, feature in enumerate(sparse_features(run)):
        ends = offsets[number * batch.size : (number + 1) * batch.size + 1]
        column = (batch.ids[ends[0] : ends[-1]], ends[1:] - ends[0])
        columns.setdefault(feature.table_name, []).append(column)
    return columns


def _mean_unique(features: Sequence[Column], size: int, rows: int) -> float:
    """Return the mean of up to four batches; at least a thousandth, so that its logarithm exists."""
    counts = []
    for number in range(min(4, rows // size)):
        first, last = number * size, (number + 1) * size
        parts = [values[ends[first - 1] if first else 0 : ends[last - 1]] for values, ends in features]
        counts.append(np.unique(np.concatenate(parts)).size)
    return max(sum(counts) / len(counts), 1e-3)
