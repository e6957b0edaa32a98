"""Counts of the ids of a column: of all ids where they are few, else of the frequent ones and of a sample.

A hash of an id decides whether it is in the sample, and all its occurrences are counted (Gibbons, "Distinct sampling",
2001). So samples of two columns hold the same ids, the number of distinct ids follows from the sample's size, and the
ids of evaluation can be compared with those of training. DuckDB's `approx_count_distinct` is off by several percent,
and its `approx_top_k` counts nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.inspect.queries import Queries

MOST_IDS = 1 << 15
"""Most ids that are all counted, approximately, and most ids in a sample."""
STANDARD_ERROR = 1.0 / math.sqrt(MOST_IDS / 2)
"""Relative standard error of a number of distinct ids that is estimated, 0.8 %."""
_CANDIDATES = 1024
"""Most frequent ids of the sampled rows, which are counted in all rows whether or not they are in the sample."""


@dataclass(frozen=True, slots=True)
class IdCounts:
    """Ids, and how often each occurs; level n samples one id of 2^n."""

    ids: NDArray[np.uint64]
    """Integers (negative ones as their two's complement), or hashes of texts; in the order of `hashes`."""
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    """Occurrences of each id in training and in evaluation rows, [ids, 2]."""
    totals: NDArray[np.int64]
    """Occurrences of all ids, [2]."""
    level: int

    @property
    def is_exact(self) -> bool:
        """True if all ids are counted."""
        return self.level == 0

    @property
    def distinct(self) -> int:
        """Number of distinct ids: counted if they are few, else estimated."""
        return int(self._sampled(self.level).sum()) << self.level

    def top(self, number: int, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of the most frequent ids by `counts`, most frequent first."""
        order = np.argsort(-counts, kind="stable")[:number]
        return order[counts[order] > 0]

    def sample(self, level: int) -> "IdCounts":
        """Return the ids that are sampled at a level, which is no lower than the own one."""
        chosen = self._sampled(level)
        return IdCounts(self.ids[chosen], self.hashes[chosen], self.counts[chosen], self.totals, level)

    def trained(self) -> "IdCounts":
        """Return the ids that occur in training rows."""
        chosen = self.counts[:, 0] > 0
        return IdCounts(self.ids[chosen], self.hashes[chosen], self.counts[chosen], self.totals, self.level)

    def _sampled(self, level: int) -> NDArray[np.bool_]:
        sampled: NDArray[np.bool_] = (self.hashes & np.uint64((1 << level) - 1)) == 0
        return sampled


def common_samples(*columns: IdCounts) -> list[IdCounts]:
    """Return samples of several columns at one level, which agree on the ids that they hold."""
    level = max(column.level for column in columns)
    return [column.sample(level) for column in columns]


def distinct_in(columns: list[IdCounts]) -> int:
    """Return the number of distinct ids of several columns together."""
    samples = common_samples(*columns)
    together = np.unique(np.concatenate([sample.ids for sample in samples])).size << samples[0].level
    return max([together, *(column.distinct for column in columns)])  # an estimate may be below one column's count


def count_ids(queries: Queries, values: str, id_: str, totals: NDArray[np.int64]) -> IdCounts:
    """Count ids in at most a few passes; `totals` is their number in training and evaluation rows.

    `values` is SQL for `split` and `v` of each value that is not null, with `{}` in place of the table; `id_` is SQL
    for the id of `v`.
    """
    level, wanted = _level(int(totals.sum())), ""
    if level:
        candidates = queries.run(
            f"SELECT {id_} AS id FROM {values.format('sample')} "
            f"GROUP BY id ORDER BY count(*) DESC, id LIMIT {_CANDIDATES}"
        )
        wanted = ", ".join(str(number) for (number,) in candidates) or "NULL"
    while True:
        condition = f"WHERE hash(id) & {(1 << level) - 1} = 0 OR id IN ({wanted})" if level else ""
        found = queries.run(
            f"SELECT id, hash(id), count(*) FILTER (split = 0), count(*) FILTER (split = 1) "
            f"FROM (SELECT split, {id_} AS id FROM {values.format(queries.whole)}) {condition} "
            "GROUP BY id ORDER BY hash(id)"
        )
        table = np.array(found, np.uint64).reshape(-1, 4)
        ids = IdCounts(table[:, 0], table[:, 1], table[:, 2:].astype(np.int64), totals, level)
        if level == 0 or ids.distinct >= MOST_IDS // 2 << level:
            return ids
        level = min(level - 1, _level(ids.distinct))  # there are fewer ids than values: sample more of them


def _level(ids: int) -> int:
    """Return the level at which so many distinct ids leave at most MOST_IDS in a sample."""
    return max(0, math.ceil(math.log2(max(ids, 1) / MOST_IDS)))
