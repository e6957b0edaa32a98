"""The check of the memory of a process that was killed, and the record of what was repaired in it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import MemoryFileError
from persia_cli.kernels import check, journal
from persia_cli.store.memory.memory_file import LOAD
from persia_cli.store.memory.progress import BatchRequest
from persia_cli.store.row_store import RowStore, Tables

FAULTS = {
    check.GAP: "a bucket has a gap",
    check.FOREIGN: "a key lies in a partition that is not its own",
    check.MISPLACED: "a key lies in neither of its buckets",
    check.UNREACHABLE: "a key lies in its second bucket though the first is not full",
    check.NO_SUCH_ROW: "a slot has a row beyond the capacity",
    check.TWICE: "two slots have the same row",
}

ROWS_AT_ONCE = 2**20
"""Rows whose tables are in memory as a copy at a time."""


class Repairs(NamedTuple):
    """The result of taking over the memory of another process."""

    rows: int
    """Rows in use."""
    row: bool
    """True if the row of an update was written back, which was or might have been changed in part."""
    new_key: bool
    """True if a new key was given its row once more."""
    request: BatchRequest | None
    """The look-up or update that was carried out; None if there was none. It goes on when it comes again."""


class UnderWay(NamedTuple):
    """The work in progress, as the word of a journal has it."""

    bare: bool
    """True if no note is valid."""
    adding: bool
    """True if a look-up was giving rows to new keys."""
    group: int
    position: int

    @classmethod
    def of(cls, word: int) -> "UnderWay":
        """Decode a word."""
        shift = int(journal.GROUP)
        group = (word & ~int(journal.BARE | journal.ADDING)) >> shift
        return cls(bool(word & int(journal.BARE)), bool(word & int(journal.ADDING)), group, word & ((1 << shift) - 1))


def check_store(store: RowStore, rows_of_tables: NDArray[np.int64]) -> int:
    """Check the index of a store and count its rows anew; returns the number of rows in use.

    rows_of_tables[t] are the rows that table t must have. Raises MemoryFileError for the first fault. Writes `fill`.
    """
    counts = check.IndexCounts(np.zeros(-(-store.capacity // 64) + 1, np.uint64), np.zeros(2, np.uint64))
    where = f"the index of feature group {store.group.number} is damaged"
    fault = check.check_index(store.index, len(store.partitions), store.capacity, counts)
    if fault != check.SOUND:
        raise MemoryFileError(f"{where}: {FAULTS[fault]} (slot {counts.fault[0]}); {LOAD}")
    used = int(counts.fault[1])
    if not _are_first(counts.seen, used):
        raise MemoryFileError(f"{where}: a row that is in use belongs to no key; {LOAD}")
    if store.index.fill.max(initial=0) > store.group.rows_per_partition:
        raise MemoryFileError(f"{where}: a partition has more rows than it may; {LOAD}")
    own = [table.number for table in store.group.tables]
    of_table = _rows_of_tables(store.index.tables[:used], rows_of_tables.size)
    if int(of_table[own].sum()) != used:
        raise MemoryFileError(f"{where}: a row is of a table that is not in the group; {LOAD}")
    if (of_table[own] != rows_of_tables[own]).any():
        raise MemoryFileError(f"{where}: its tables have other numbers of rows than were counted; {LOAD}")
    return used


def _rows_of_tables(tables: Tables, count: int) -> NDArray[np.int64]:
    """Return how many rows are of each of the tables below `count`, given the table of each row.

    The rows in use are the first ones, so they are read one after the other and not in the order of their keys.
    """
    rows = np.zeros(2**16, np.int64)
    for start in range(0, tables.size, ROWS_AT_ONCE):
        rows += np.bincount(tables[start : start + ROWS_AT_ONCE], minlength=rows.size)
    return rows[:count]


def _are_first(bits: NDArray[np.uint64], count: int) -> bool:
    """Return whether of all bits exactly the first `count` are set; no more than that may be set."""
    whole, rest = divmod(count, 64)
    return bool((bits[:whole] == np.uint64(2**64 - 1)).all() and bits[whole] == np.uint64((1 << rest) - 1))
