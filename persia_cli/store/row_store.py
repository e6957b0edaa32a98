"""The rows of one feature group on one server: index, values, and what is known of each row."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import ConfigError
from persia_cli.kernels import buckets, index, memory, room
from persia_cli.kernels.rows import CODES, Rows
from persia_cli.store.layout import MAX_ROWS, SLOTS, GroupSpec

MAX_SCORE = 2**32 - 1
"""Greatest step of last use: a slot keeps it in 32 bits."""

Keys = NDArray[np.uint64]
Tables = NDArray[np.uint16]
Floats = NDArray[np.float32]


class Window(NamedTuple):
    """Rows of some partitions: keys uint64[n], tables uint16[n], rows int64[n], scores int64[n]."""

    keys: Keys
    tables: Tables
    rows: NDArray[np.int64]
    scores: NDArray[np.int64]


class Inserted(NamedTuple):
    """What became of rows that were to be added."""

    added: int
    repeated: int
    """Were there already."""
    refused: int
    """Found no room."""


class RowStore:
    """Rows of keys in a range of partitions. Memory is reserved for the whole capacity and taken as rows arrive."""

    def __init__(self, group: GroupSpec, partitions: range) -> None:
        """Raise ConfigError when the capacity is not possible on this machine."""
        self.group = group
        self.partitions = partitions
        self.capacity = group.rows_per_partition * len(partitions)
        self.used = 0
        slots = group.buckets * SLOTS * len(partitions)
        if slots > MAX_ROWS:
            raise ConfigError(
                f"feature group {group.number} would have {self.capacity:,} rows on one embedding server, more than "
                f"{MAX_ROWS:,}: give embedding.capacity or embedding.memory a lower value, or use more servers"
            )
        try:
            self.index = _index(group, partitions, slots)
            self.rows = Rows(
                arena=memory.zeros(slots * group.width, np.float32),
                width=np.uint64(group.width),
                dim=np.uint64(group.dim),
                state_at=np.uint64(group.state_at),
                storage=CODES[group.dtype],
                line=np.zeros(group.dim, np.float32),
            )
        except MemoryError as error:
            raise ConfigError(
                f"cannot reserve memory for {self.capacity:,} rows of feature group {group.number} "
                f"({group.width * 4} bytes each): give embedding.memory or embedding.capacity a lower value"
            ) from error

    def find(self, keys: Keys, tables: Tables) -> NDArray[np.int64]:
        """int64[n] row of each (key, table), all of the own partitions, -1 where there is none; changes nothing."""
        rows = np.empty(keys.size, np.int64)
        index.find(self.index, keys, tables, rows)
        return rows

    def insert(self, keys: Keys, tables: Tables, scores: NDArray[np.int64], parts: dict[str, Floats]) -> Inserted:
        """Add rows of keys of the own partitions that are not there yet; `parts` are as `read_rows` gives them."""
        rows = np.empty(keys.size, np.int64)
        used = room.insert(self.index, keys, tables, scores.astype(np.uint32), self.used, rows)
        new = rows >= 0
        self.write_rows(rows[new], {name: part[new] for name, part in parts.items()})
        added, self.used = used - self.used, used
        return Inserted(added, int(np.count_nonzero(rows == room.REPEATED)), int(np.count_nonzero(rows == -1)))

    def in_window(self, first: int, last: int) -> Window:
        """Rows of partitions [first, last), by key, then table number."""
        start, stop = first - self.partitions.start, last - self.partitions.start
        size = int(self.index.fill[start:stop].sum())
        keys, tables = np.empty(size, np.uint64), np.empty(size, np.uint16)
        rows, scores = np.empty(size, np.int64), np.empty(size, np.uint32)
        index.collect(self.index, start * self.group.buckets, stop * self.group.buckets, keys, tables, rows, scores)
        order = np.lexsort((tables, keys))
        return Window(keys[order], tables[order], rows[order], scores[order].astype(np.int64))

    def read_rows(self, rows: NDArray[np.int64]) -> dict[str, Floats]:
        """float32[n, columns] of the embedding and of each optimizer state, by name."""
        words = self.rows.arena.reshape(-1, self.group.width)[rows]
        parts = {"embedding": _widened(words[:, : self.group.state_at], self.group.dim, self.group.dtype)}
        start = self.group.state_at
        for name, columns in self.group.optimizer.states(self.group.dim).items():
            parts[name] = np.ascontiguousarray(words[:, start : start + columns])
            start += columns
        return parts

    def write_rows(self, rows: NDArray[np.int64], parts: dict[str, Floats]) -> None:
        """Undo `read_rows`; halves are rounded to nearest."""
        words = np.zeros((rows.size, self.group.width), np.float32)
        narrowed = _narrowed(parts["embedding"], self.group.dtype)
        words[:, : self.group.state_at] = narrowed
        start = self.group.state_at
        for name, columns in self.group.optimizer.states(self.group.dim).items():
            words[:, start : start + columns] = parts[name]
            start += columns
        self.rows.arena.reshape(-1, self.group.width)[rows] = words


def _index(group: GroupSpec, partitions: range, slots: int) -> buckets.Index:
    words = memory.zeros(slots // SLOTS * 8, np.uint64)
    return buckets.Index(
        buckets=words,
        marks=words.view(np.uint32),
        tables=memory.zeros(slots, np.uint16),
        reused=memory.zeros(slots, np.uint8),
        fill=np.zeros(len(partitions), np.int32),
        first=np.uint64(partitions.start),
        partitions=np.uint64(group.partitions),
        size=np.uint64(group.buckets),
        several=len(group.tables) > 1,
        scratch=np.zeros(buckets.SCRATCH, np.uint64),
    )


def _widened(words: Floats, dim: int, dtype: str) -> Floats:
    """float32[n, dim] of embeddings as they lie in rows."""
    if dtype == "float32":
        return np.ascontiguousarray(words)
    halves = np.ascontiguousarray(words).view(np.uint16)[:, :dim]
    if dtype == "float16":
        return halves.view(np.float16).astype(np.float32)
    return np.left_shift(halves.astype(np.uint32), 16).view(np.float32)


def _narrowed(values: Floats, dtype: str) -> Floats:
    """Embeddings float32[n, dim] as float32 words of rows."""
    if dtype == "float32":
        return values
    halves = np.zeros((values.shape[0], values.shape[1] + values.shape[1] % 2), np.uint16)
    if dtype == "float16":
        halves[:, : values.shape[1]] = np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
    else:
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        halves[:, : values.shape[1]] = np.where(np.isnan(values), 0x7FC0, rounded)
    return halves.view(np.float32)
