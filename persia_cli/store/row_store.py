"""The rows of one feature group on one server: index, values and row data."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import ConfigError
from persia_cli.kernels.rows.int8 import GREATEST, LEAST_SCALE, MOST_SCALE
from persia_cli.kernels.rows.rows import CODES, RowArena, fill_rows
from persia_cli.kernels.table import buckets, frequency, slots
from persia_cli.kernels.table.cold import ColdLog, no_log
from persia_cli.kernels.table.index import find_and_touch
from persia_cli.kernels.table.old_rows import OldRows
from persia_cli.kernels.toolchain.memory import HUGE_PAGE
from persia_cli.store.cold.cold_rows import ColdRows, ColdStorage
from persia_cli.store.layout import MAX_ROWS, GroupSpec, Storage, embedding_words, partitions_of_keys
from persia_cli.store.memory_file import PRIVATE, Memory, MemoryFile, PrivateMemory

MAX_STEP = 2**32 - 1
"""Greatest step of last use, which a slot stores in 32 bits; the checkpoint's column `last_used` contains it."""

MARKS_AT_ONCE = 2**18
"""Buckets whose marks are copied at a time."""
AHEAD = 32 << 20
"""Bytes of rows that are moved into huge pages ahead of use: each call for it waits for all processors once."""
MAX_LEFT = 1 << 20
"""Maximum number of keys that a store notes when they leave memory; pages that are not written take none."""
FEW, INDEX_PER_ROW = 1 << 16, 4 << 10
"""An index is in small pages up to so many rows, so that small tables take little memory. Each further row moves so
many bytes of it into huge pages: a small page, the memory that a row in an index of many free slots takes anyway."""

Keys = NDArray[np.uint64]
Tables = NDArray[np.uint16]
Floats = NDArray[np.float32]
LeftKeys = tuple[Keys, Tables]
"""Keys that have no row any more, with their tables, in order."""


class RowStore:
    """The rows of keys in a range of partitions; memory is reserved for the capacity, and used as rows are added."""

    def __init__(
        self,
        group: GroupSpec,
        partitions: range,
        memory: MemoryFile | PrivateMemory = PRIVATE,
        cold: ColdStorage | None = None,
        tables: int = 0,
    ) -> None:
        """Reserve the memory; raise ConfigError if this machine does not have it.

        `cold` is the storage of rows that leave memory, if the group has space there; `tables` is the number of
        tables of the job.
        """
        self.group = group
        self.partitions = partitions
        self._memory, array = memory, memory.array
        self._backed = self._index_backed = 0
        """Bytes of rows and of the index that were moved into huge pages."""
        self.capacity = group.rows_per_partition * len(partitions)
        self.used = 0
        self.spare_save_area: OldRows | None = None
        """Memory for old rows that the last snapshot has left to the next one."""
        if self.capacity > MAX_ROWS:
            raise ConfigError(
                f"feature group {group.number} would have {self.capacity:,} rows on one embedding server, more than "
                f"{MAX_ROWS:,}: give embedding.capacity or embedding.memory a lower value, or use more servers"
            )
        try:
            self._has_loaded: NDArray[np.int64] = array(1, np.int64)
            """1 once counts of a checkpoint were loaded into the sketch."""
            self.index = _index(group, partitions, self.capacity, array)
            self.rows = RowArena(
                arena=array(self.capacity * group.width, np.float32),
                width=np.uint64(group.width),
                dim=np.uint64(group.dim),
                state_at=np.uint64(group.state_at),
                storage=CODES[group.dtype],
                line=np.zeros(group.dim, np.float32),
            )
            self.cold: ColdRows | None = None
            if cold is not None and group.cold_bytes and len(partitions):
                self.cold = ColdRows(group, len(partitions), cold, array, tables)
            self.log: ColdLog = no_log() if self.cold is None else self.cold.log
        except MemoryError as error:
            raise ConfigError(
                f"cannot reserve memory for {self.capacity:,} rows of feature group {group.number} "
                f"({group.width * 4} bytes each): give embedding.memory or embedding.capacity a lower value"
            ) from error

    def back(self, more: int) -> None:
        """Move the memory of the next `more` rows into huge pages, and a part of the index that grows with the rows."""
        index, arena, rows = self.index.buckets, self.rows.arena, self.used + more
        part = min((rows - FEW) * INDEX_PER_ROW // HUGE_PAGE * HUGE_PAGE, index.nbytes)
        if part > self._index_backed:
            self._memory.back(index, self._index_backed, part)
            self._index_backed = part
        nbytes = min(rows * self.group.width * 4, arena.nbytes)
        if nbytes > self._backed:
            until = min(nbytes + AHEAD, arena.nbytes)
            self._memory.back(arena, self._backed, until)
            self._backed = until // HUGE_PAGE * HUGE_PAGE

    @property
    def row_count(self) -> int:
        """Number of rows, in memory and in the cold log."""
        return self.used + (0 if self.cold is None else self.cold.rows)

    def owns(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each key belongs to the own partitions."""
        partitions = partitions_of_keys(keys, self.group.partitions)
        return (partitions >= self.partitions.start) & (partitions < self.partitions.stop)

    def insert(
        self,
        keys: Keys,
        tables: Tables,
        last_used: NDArray[np.int64],
        parts: dict[str, Floats],
        evict: bool,
        counts: slots.LoadCounts,
        frequencies: NDArray[np.uint8] | None = None,
    ) -> int:
        """Add rows of new keys of the own partitions; return the number of keys that had a row already.

        `parts` are as returned by `read_rows`. If there is no space, rows go to the cold log. Without one, the least
        recently used rows are left out with `evict`, otherwise the last ones. `frequencies` are those of the keys, by
        default 1.
        """
        rows = np.empty(keys.size, np.int64)
        policy = slots.EVICT_LRU if evict and self.cold is None else slots.REFUSE
        rules = slots.EvictionRules(self.group.rows_per_partition, policy, 0)
        self.used = slots.insert(self.index, keys, tables, last_used.astype(np.uint32), self.used, rules, counts, rows)
        if self.index.uses.size:
            got = rows >= 0
            counted = np.ones(keys.size, np.uint8) if frequencies is None else frequencies
            self.index.uses[rows[got]] = frequency.words_of(counted[got], last_used[got])
        # If several keys had the same row one after the other, the last one owns it: the last write stays.
        self.write_rows(rows, parts)
        if self.cold is not None:
            positions = np.flatnonzero(rows == -1)
            again = self._is_in_log(keys[positions], tables[positions])
            rows[positions[again]] = slots.REPEATED
            counts.left_out[:] -= np.bincount(tables[positions[again]], minlength=counts.left_out.size)
            self._insert_cold(positions[~again], keys, tables, last_used, parts, counts, frequencies)
        return int(np.count_nonzero(rows == slots.REPEATED))

    def _is_in_log(self, keys: Keys, tables: Tables) -> NDArray[np.bool_]:
        """Return which rows are in the cold log, or occur earlier among these: their keys must not get a second row."""
        assert self.cold is not None
        again = np.zeros(keys.size, np.bool_)
        again[self.cold.find(keys, tables).positions] = True
        order = np.lexsort((tables, keys))
        same = (keys[order[1:]] == keys[order[:-1]]) & (tables[order[1:]] == tables[order[:-1]])
        again[order[1:][same]] = True
        return again

    def _insert_cold(
        self,
        positions: NDArray[np.int64],
        keys: Keys,
        tables: Tables,
        last_used: NDArray[np.int64],
        parts: dict[str, Floats],
        counts: slots.LoadCounts,
        frequencies: NDArray[np.uint8] | None,
    ) -> None:
        """Append the rows at these places to the cold log, and count them there."""
        assert self.cold is not None
        words = self.rows._replace(arena=np.zeros(positions.size * self.group.width, np.float32))
        self._write_words(words, np.arange(positions.size), {name: part[positions] for name, part in parts.items()})
        counted = np.ones(positions.size, np.uint8) if frequencies is None else frequencies[positions]
        uses = frequency.words_of(counted, last_used[positions])
        self.cold.append(keys[positions], tables[positions], last_used[positions].astype(np.uint32), uses, words)
        came = np.bincount(tables[positions], minlength=counts.loaded.size)
        counts.left_out[:] -= came
        self.cold.loaded[:] += came

    def take_left(self) -> LeftKeys | None:
        """Return the keys that have left memory since the last call; None for more than are noted."""
        left = self.index.left
        number = int(left[0])
        left[0] = 0
        if number > left.size // 2:
            return None
        pairs = np.unique(left[1 : 1 + 2 * number].reshape(-1, 2), axis=0)
        keys, tables = np.ascontiguousarray(pairs[:, 0]), pairs[:, 1].astype(np.uint16)
        rows = np.empty(keys.size, np.int64)
        find_and_touch(self.index, keys, tables, 0, rows)  # some have returned; step 0 raises no step of last use
        return keys[rows < 0], tables[rows < 0]

    def mark_frequencies_loaded(self) -> None:
        """Record that the sketch may have counts from now on, even with few rows."""
        self._has_loaded[0] = 1

    @property
    def has_frequencies(self) -> bool:
        """True if the sketch may have counts of ids without a row, or look-ups add some: else it is all zeros."""
        if not self.index.sketch.size:
            return False
        # As in `kernels.frequency.is_counted`.
        nearly_full = 8 * int(self.index.fill.max(initial=0)) >= 7 * self.group.rows_per_partition
        return nearly_full or self.group.counts_all_new or bool(self._has_loaded[0])

    def forget_use(self) -> None:
        """Set the step of last use of all rows to 0, for a new run that begins with the rows of another one."""
        marks = self.index.marks.reshape(-1, int(buckets.MARKS))[:, int(buckets.LAST_USED) :]
        for start in range(0, len(marks), MARKS_AT_ONCE):
            part = marks[start : start + MARKS_AT_ONCE]
            # Pages that were never written stay unwritten.
            part[part != 0] = 0
        self.index.uses[: self.used] &= ~np.uint32(frequency.STEP)

    def read_rows(self, rows: NDArray[np.int64]) -> dict[str, Floats]:
        """Return the embedding and each optimizer state by name, float32[n, columns]."""
        words = self.rows.arena.reshape(-1, self.group.width)[rows]
        return vectors_of(words, self.group.vectors, self.group.dtype)

    def write_rows(self, rows: NDArray[np.int64], parts: dict[str, Floats]) -> None:
        """Write the result of `read_rows` to rows int64[n], of which negative ones are skipped.

        Values of fewer bits are rounded to nearest. If a row occurs twice, the later values stay.
        """
        self._write_words(self.rows, rows, parts)

    def _write_words(self, arena: RowArena, rows: NDArray[np.int64], parts: dict[str, Floats]) -> None:
        first = 0
        words = {"embedding": _narrowed(parts["embedding"], self.group.dtype)}
        for part in (words | {name: parts[name] for name in self.group.optimizer.states(self.group.dim)}).values():
            fill_rows(arena, rows, first, part.shape[1], np.ascontiguousarray(part).reshape(-1))
            first += part.shape[1]


def vectors_of(words: Floats, sizes: Mapping[str, int], dtype: Storage) -> dict[str, Floats]:
    """Return vectors by name, float32[n, columns], from the words of rows [n, width]; `sizes` are their columns."""
    dim = sizes["embedding"]
    start = embedding_words(dim, dtype)
    parts = {"embedding": _widened(words[:, :start], dim, dtype)}
    for name, columns in sizes.items():
        if name != "embedding":
            parts[name] = np.ascontiguousarray(words[:, start : start + columns])
            start += columns
    return parts


def _index(group: GroupSpec, partitions: range, rows: int, memory: Memory) -> buckets.Index:
    words = memory(group.buckets * len(partitions) * 8, np.uint64)
    return buckets.Index(
        buckets=words,
        marks=words.view(np.uint32),
        tables=memory(rows, np.uint16),
        reused=memory(rows, np.uint8),
        fill=memory(len(partitions), np.int32),
        first=np.uint64(partitions.start),
        partitions=np.uint64(group.partitions),
        size=np.uint64(group.buckets),
        several=len(group.tables) > 1,
        scratch=np.zeros(buckets.SCRATCH, np.uint64),
        uses=memory(rows if group.counts_uses else 0, np.uint32),
        sketch=memory(len(partitions) * group.sketch_lines * int(frequency.WORDS), np.uint64),
        lines=np.uint64(group.sketch_lines),
        epoch_bits=np.uint64(group.epoch_bits),
        left=memory(1 + 2 * MAX_LEFT if group.names_left else 0, np.uint64),
    )


def _widened(words: Floats, dim: int, dtype: str) -> Floats:
    """Return embeddings float32[n, dim] from the words of rows."""
    if dtype == "float32":
        return np.ascontiguousarray(words)
    if dtype == "int8":
        return np.ascontiguousarray(words[:, 1:]).view(np.int8)[:, :dim] * words[:, :1]
    halves = np.ascontiguousarray(words).view(np.uint16)[:, :dim]
    if dtype == "float16":
        return halves.view(np.float16).astype(np.float32)
    return np.left_shift(halves.astype(np.uint32), 16).view(np.float32)


def _narrowed(values: Floats, dtype: str) -> Floats:
    """Return the float32 words of rows for embeddings float32[n, dim]."""
    if dtype == "float32":
        return values
    if dtype == "int8":
        return _int8(values)
    halves = np.zeros((values.shape[0], values.shape[1] + values.shape[1] % 2), np.uint16)
    if dtype == "float16":
        halves[:, : values.shape[1]] = np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
    else:
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        halves[:, : values.shape[1]] = np.where(np.isnan(values), 0x7FC0, rounded)
    return halves.view(np.float32)


def _int8(values: Floats) -> Floats:
    """Return the float32 words of int8 rows, equal to those of `kernels.rows.pack_line`."""
    size, dim = values.shape
    greatest = np.abs(values).max(axis=1, keepdims=True)
    bits = (greatest / GREATEST).view(np.uint32)
    scale = np.clip(((bits + ((bits >> 1) & 1)) & ~np.uint32(1)).view(np.float32), LEAST_SCALE, MOST_SCALE)
    scale[~np.isfinite(greatest)] = np.nan
    numbers = np.zeros((size, dim + -dim % 4), np.int8)
    numbers[:, :dim] = np.fmax(np.fmin(np.rint(values / scale), GREATEST), -GREATEST)
    return np.concatenate([scale, numbers.view(np.float32)], axis=1)
