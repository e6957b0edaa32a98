"""The counters of an embedding server for each table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from persia_cli.kernels.table.arguments import Counts
from persia_cli.kernels.table.slots import LoadCounts
from persia_cli.store.cold.cold_rows import ColdRows
from persia_cli.store.layout import EmbeddingLayout, GroupSpec
from persia_cli.store.memory_file import Memory
from persia_cli.store.row_store import RowStore
from persia_cli.wire.message import TableTotals


@dataclass(frozen=True)
class TableCounters:
    """The counters of a table on this server; look-ups that only read are not counted."""

    rows: int
    """Rows in memory."""
    bytes: int
    """Their memory: embedding, optimizer state, padding."""
    hits: int
    """Ids that had a row."""
    misses: int
    """Ids without a row: admitted + refused + not_admitted."""
    admitted: int
    """Ids that got a row."""
    refused: int
    """Ids for which there was no space, or that were too rare to replace a row; they read as zeros."""
    not_admitted: int
    """Ids that `embedding.admission` does not admit, or not yet; they read as zeros."""
    evicted: int
    """Rows replaced in memory by ids of this or another table."""
    expired: int
    """Those of them that were older than `embedding.expire_after`."""
    left_out: int
    """Rows of a loaded checkpoint for which there was no space."""
    gradients_missing: int
    """Gradients whose row no longer exists."""
    gradients_refused: int
    """Gradients that are not finite in float32, or whose square is not (beyond 1.8e19)."""
    cold_rows: int = 0
    """With `embedding.cold`: rows on disks."""
    returned: int = 0
    """With `embedding.cold`: rows that returned from disks to memory."""
    dropped: int = 0
    """With `embedding.cold`: rows lost because its `size` was used up, or the disk full."""


OF_COLD = ("cold_rows", "returned", "dropped")
"""Counters that tables without a cold tier do not have."""

READS = "reads of "
"""Prefix of the count of a feature's look-ups in evaluation and prediction, among the counts of its table."""


def reads_of(feature: str) -> str:
    """Return the name of the count of a feature's look-ups in evaluation and prediction."""
    return f"{READS}{feature}"


def known_of(feature: str) -> str:
    """Return the name of the count of those that found a row."""
    return f"reads_known of {feature}"


class ShardCounts:
    """The counts of a shard, which its kernels change; each is int64[tables], by table number.

    Rows in memory are admitted + loaded + returned - evicted; rows on disks are evicted - returned - dropped + loaded
    there.
    """

    def __init__(self, layout: EmbeddingLayout, stores: Sequence[RowStore], memory: Memory) -> None:
        count = layout.salts().size
        self._stores = stores
        self._all = memory(len(Counts._fields) * count, np.int64).reshape(len(Counts._fields), count)
        self.of_kernels = Counts(*self._all)
        self.loads = LoadCounts(*memory(2 * count, np.int64).reshape(2, count))
        self._read_by_features = [table.number for group in layout.feature_groups for table in group.tables]

    def evicted(self, group: GroupSpec) -> int:
        """Return the number of rows of a group evicted so far."""
        return int(self.of_kernels.evicted[[table.number for table in group.tables]].sum())

    def rows(self) -> NDArray[np.int64]:
        """Return the rows of each table in memory, int64[tables]."""
        return self.of_kernels.admitted + self.loads.loaded + self.of_kernels.returned - self.of_kernels.evicted

    def cold_rows(self, log: ColdRows) -> NDArray[np.int64]:
        """Return the rows of each table in a cold log, int64[tables]."""
        return self.of_kernels.evicted - self.of_kernels.returned - log.dropped + log.loaded

    def totals(self) -> TableTotals:
        """Return the summed counters of all tables that features read; cheap enough for every look-up."""
        counts = self._all[:, self._read_by_features].sum(axis=1).tolist()
        hits, admitted, refused, not_admitted, evicted, _, returned, _, _ = counts
        rows = admitted + int(self.loads.loaded[self._read_by_features].sum()) + returned - evicted
        totals = TableTotals(rows, evicted, hits, admitted + refused + not_admitted)
        logs = [store.cold for store in self._stores if store.cold is not None]
        if not logs:
            return totals
        return structs.replace(
            totals,
            returned=returned,
            cold_loaded=sum(int(log.loaded.sum()) for log in logs),
            dropped=sum(int(log.dropped.sum()) for log in logs),
            cold_reads=sum(int(log.counts.reads[0]) for log in logs),
            cold_waited_us=sum(int(log.counts.waited_us[0]) for log in logs),
            cold_written=sum(int(log.counts.bytes_written[0]) for log in logs),
        )

    def by_table(self) -> dict[str, TableCounters]:
        """Return the counters by table name."""
        return {table.name: self._of(table.number, store) for store in self._stores for table in store.group.tables}

    def _of(self, table: int, store: RowStore) -> TableCounters:
        hits, admitted, refused, not_admitted, evicted, expired, returned, missing, rejected = (
            int(counts[table]) for counts in self.of_kernels
        )
        rows, log = int(self.rows()[table]), store.cold
        return TableCounters(
            rows=rows,
            bytes=rows * store.group.width * 4,
            hits=hits,
            misses=admitted + refused + not_admitted,
            admitted=admitted,
            refused=refused,
            not_admitted=not_admitted,
            evicted=evicted,
            expired=expired,
            left_out=int(self.loads.left_out[table]),
            gradients_missing=missing,
            gradients_refused=rejected,
            cold_rows=0 if log is None else int(self.cold_rows(log)[table]),
            returned=returned,
            dropped=0 if log is None else int(log.dropped[table]),
        )
