"""The rows of one feature group on one server: arena, index and what is known of each row."""

import math

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import ConfigError
from persia_cli.kernels import index, update
from persia_cli.store.layout import MAX_ROWS, SLOTS_PER_ROW, GroupSpec, first_hash

CACHE_LINE = 64
SCORE_BITS = 48
MAX_SCORE = 2**SCORE_BITS - 1


class RowStore:
    """Rows of keys in a range of partitions. Memory is reserved for the whole capacity and taken as rows arrive."""

    def __init__(self, group: GroupSpec, partitions: range, num_partitions: int) -> None:
        """Raise ConfigError when the capacity is not possible on this machine."""
        self.group = group
        self.width = group.width
        self.capacity = math.ceil(group.capacity * len(partitions) / num_partitions)
        self.used = 0
        self.first = first_hash(num_partitions, partitions.start)
        self.span = first_hash(num_partitions, partitions.stop) - self.first
        if self.capacity > MAX_ROWS:
            raise ConfigError(
                f"feature group {group.number} would have {self.capacity:,} rows on one embedding server, more than "
                f"{MAX_ROWS:,}: give embedding.capacity or embedding.memory a lower value, or use more servers"
            )
        slots = math.ceil(self.capacity * SLOTS_PER_ROW) + 1
        self._start = np.uint64(self.first)
        self._scale = np.uint64((slots << 32) // self.span)
        try:
            self.arena = _aligned(self.capacity * self.width)
            self.info = np.zeros(self.capacity, np.uint64)
            self._keys = np.zeros(slots, np.uint64)
            self._rows = np.zeros(slots, np.uint32)
        except MemoryError as error:
            raise ConfigError(
                f"cannot reserve memory for {self.capacity:,} rows of feature group {group.number} "
                f"({self.width * 4} bytes each): give embedding.memory or embedding.capacity a lower value"
            ) from error

    def find(self, keys: NDArray[np.uint64], tables: NDArray[np.uint16]) -> NDArray[np.int64]:
        """int64[n] row of each (key, table), -1 where there is none; changes nothing."""
        rows = np.empty(keys.size, np.int64)
        index.find(self._keys, self._rows, self.info, self._start, self._scale, keys, tables, rows)
        return rows

    def find_or_create(
        self,
        keys: NDArray[np.uint64],
        tables: NDArray[np.uint16],
        step: int,
        hits: NDArray[np.int64],
        creations: NDArray[np.int64],
        refusals: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of each (key, table), -1 where there was no room, and positions of those just created.

        Created rows hold no values yet. Counts are added by table number.
        """
        rows, created = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
        count = index.find_or_create(
            self._keys, self._rows, self.info, self._start, self._scale, self.used, keys, tables, step,
            rows, created, hits, creations, refusals,
        )  # fmt: skip
        self.used += count
        return rows, created[:count]

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[n, dim] embeddings; zeros for row -1."""
        out = np.empty((rows.size, self.group.dim), np.float32)
        update.gather(self.arena, self.width, self.group.dim, rows, out.reshape(-1))
        return out

    def values(self) -> NDArray[np.float32]:
        """float32[capacity, width] view of all rows."""
        return self.arena.reshape(self.capacity, self.width)

    def in_window(self, low: int, high: int) -> tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.int64]]:
        """(keys, tables, rows) whose key's high 32 bits are in [low, high), by key, then table number."""
        window = (self._keys, self._rows, self._start, self._scale, low, high)
        slots = np.empty(index.collect(*window, np.empty(0, np.int64)), np.int64)
        index.collect(*window, slots)
        keys, rows = self._keys[slots], self._rows[slots].astype(np.int64) - 1
        tables = (self.info[rows] >> np.uint64(SCORE_BITS)).astype(np.uint16)
        order = np.lexsort((tables, keys))
        return keys[order], tables[order], rows[order]

    def scores(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n] step of last use."""
        return (self.info[rows] & np.uint64(MAX_SCORE)).astype(np.int64)

    def set_scores(self, rows: NDArray[np.int64], scores: NDArray[np.int64]) -> None:
        """Replace the scores of existing rows by scores in [0, MAX_SCORE]."""
        tables = self.info[rows] >> np.uint64(SCORE_BITS) << np.uint64(SCORE_BITS)
        self.info[rows] = tables | scores.astype(np.uint64)


def _aligned(size: int) -> NDArray[np.float32]:
    """An uninitialised float32[size] that starts on a cache line."""
    block = np.empty(size * 4 + CACHE_LINE, np.uint8)
    offset = -block.ctypes.data % CACHE_LINE
    return block[offset : offset + size * 4].view(np.float32)
