"""The frequency of ids in a sample of the training rows: unique ids of a batch, and hit rates of a capacity."""

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
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


class Frequency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The curves of a sample of rows; numbers beyond it are predicted from its last two points."""

    rows: int
    ids: dict[str, float]
    """Ids of a sample by table."""
    sizes: tuple[int, ...]
    """Samples of a batch."""
    unique: dict[str, tuple[float, ...]]
    """Mean unique ids of batches of these sizes, by table."""
    capacities: tuple[int, ...]
    hit_rates: tuple[float, ...]
    """Look-ups of the second half of the sample that find the most frequent so many ids of the first half."""

    def unique_ids(self, table: str, samples: float) -> float:
        """Return the unique ids of a table in a batch, interpolated between sizes by their logarithms."""
        points = self.unique[table]
        after = min(max(1, bisect_left(self.sizes, samples)), len(points) - 1)
        low, high = after - 1, after
        slope = math.log(points[high] / points[low]) / math.log(self.sizes[high] / self.sizes[low])
        value = points[low] * (samples / self.sizes[low]) ** slope
        return min(value, samples * self.ids[table]) if samples else 0.0

    def hit_rate(self, capacity: int) -> float:
        """Return the fraction of look-ups that find a row among so many rows; at most what the sample shows."""
        return float(np.interp(math.log(max(capacity, 1)), np.log(self.capacities), self.hit_rates))


def sample_frequency(run: Run) -> Frequency:
    """Read a sample of the training rows and count its ids; raises DataError if there are too few rows."""
    source = open_source(run.dataset, "train", run.seed, run.links)
    try:
        rows = min(SAMPLE, source.rows)
        if rows < MIN_ROWS:
            raise DataError(f"the data set has {source.rows:,} training rows; costs are measured with {MIN_ROWS:,}")
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
    capacities, hit_rates = _hits(columns, rows)
    return Frequency(rows, ids, tuple(sizes), unique, capacities, hit_rates)


def _columns(run: Run, batch: Batch) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = {}
    offsets = batch.offsets.astype(np.int64)
    for number, feature in enumerate(sparse_features(run)):
        ends = offsets[number * batch.size : (number + 1) * batch.size + 1]
        own = (batch.ids[ends[0] : ends[-1]], ends[1:] - ends[0])
        found.setdefault(feature.table or feature.name, []).append(own)
    return found


def _part(values: NDArray[np.uint64], ends: NDArray[np.int64], first: int, last: int) -> NDArray[np.uint64]:
    return values[ends[first - 1] if first else 0 : ends[last - 1]]


def _mean_unique(features: Sequence[Column], size: int, rows: int) -> float:
    """Return the mean of up to four batches; at least a thousandth, so that its logarithm exists."""
    counts = []
    for number in range(min(4, rows // size)):
        parts = [_part(values, ends, number * size, (number + 1) * size) for values, ends in features]
        counts.append(np.unique(np.concatenate(parts)).size)
    return max(sum(counts) / len(counts), 1e-3)


def _hits(columns: dict[str, list[Column]], rows: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return capacities that double, and the hit rate of each."""
    counts, seen, total = [], [], 0
    for features in columns.values():
        first = np.concatenate([_part(values, ends, 0, rows // 2) for values, ends in features])
        second = np.concatenate([_part(values, ends, rows // 2, rows) for values, ends in features])
        known, often = np.unique(first, return_counts=True)
        asked, times = np.unique(second, return_counts=True)
        counts.append(often)
        seen.append(np.zeros(known.size, np.int64))
        seen[-1][np.isin(known, asked)] = times[np.isin(asked, known)]
        total += second.size
    order = np.argsort(-np.concatenate(counts), kind="stable")
    covered = np.cumsum(np.concatenate(seen)[order])
    capacities = [1 << power for power in range(int(covered.size).bit_length())]
    return (*capacities,), tuple(round(float(covered[size - 1]) / max(total, 1), 5) for size in capacities)
