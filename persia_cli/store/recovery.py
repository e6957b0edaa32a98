"""A shard in a memory file: its beginning, and its repair by the process that continues it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import DiskError, MemoryFileError
from persia_cli.kernels.table import check, journal, new_keys
from persia_cli.kernels.table.arguments import KernelTable
from persia_cli.kernels.table.journal import KernelProgress, whole_lines
from persia_cli.kernels.toolchain.memory import HUGE_PAGE, Empty
from persia_cli.store.cold.cold_rows import ColdStorage
from persia_cli.store.cold.geometry import geometry
from persia_cli.store.layout import LINE_BYTES, USES_BYTES, EmbeddingLayout, partitions_of
from persia_cli.store.memory_file import LOAD, LOADING, MemoryFile
from persia_cli.store.requests import SPAN, BatchRequest, address_space
from persia_cli.store.row_store import RowStore, Tables
from persia_cli.store.shard import Shard

FAULTS = {
    check.GAP: "a bucket has a gap",
    check.FOREIGN: "a key lies in a partition that is not its own",
    check.MISPLACED: "a key lies in neither of its buckets",
    check.UNREACHABLE: "a key lies in its second bucket though the first is not full",
    check.NO_SUCH_ROW: "a slot has a row beyond the capacity",
    check.TWICE: "two slots have the same row",
}

ROWS_AT_ONCE = 2**20
"""Rows whose tables are copied at a time."""


class Repairs(NamedTuple):
    """The result of taking over the memory of another process."""

    rows: int
    """Rows in use."""
    row: bool
    """True if the row of an update was restored, which was or might have been changed in part."""
    new_key: bool
    """True if a new key was given its row again."""
    request: BatchRequest | None
    """The unfinished look-up or update, or None. It continues when it is repeated."""


def check_store(store: RowStore, rows_of_tables: NDArray[np.int64]) -> int:
    """Check the index of a store and count its rows anew; return the number of rows in use.

    rows_of_tables[t] are the rows that table t must have. Raise MemoryFileError for the first fault. Write `fill`.
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
    numbers = [table.number for table in store.group.tables]
    of_table = _rows_of_tables(store.index.tables[:used], rows_of_tables.size)
    if int(of_table[numbers].sum()) != used:
        raise MemoryFileError(f"{where}: a row is of a table that is not in the group; {LOAD}")
    if (of_table[numbers] != rows_of_tables[numbers]).any():
        raise MemoryFileError(f"{where}: its tables have other numbers of rows than were counted; {LOAD}")
    return used


def _rows_of_tables(tables: Tables, count: int) -> NDArray[np.int64]:
    """Return the number of rows of each table below `count`, given the table of each row."""
    # The rows in use are the first ones, so they are read in memory order and not in the order of their keys.
    rows = np.zeros(2**16, np.int64)
    for start in range(0, tables.size, ROWS_AT_ONCE):
        rows += np.bincount(tables[start : start + ROWS_AT_ONCE], minlength=rows.size)
    return rows[:count]


def _are_first(bits: NDArray[np.uint64], count: int) -> bool:
    """Return whether exactly the first `count` bits are set; no more than that may be set."""
    whole, rest = divmod(count, 64)
    return bool((bits[:whole] == np.uint64(2**64 - 1)).all() and bits[whole] == np.uint64((1 << rest) - 1))


def create(
    file: int,
    layout: EmbeddingLayout,
    server: int,
    servers: int,
    ranks: int,
    last_step: int = -1,
    empty: Empty = np.empty,
    cold_storage: ColdStorage | None = None,
) -> Shard:
    """Begin an empty shard in a file, whose content is lost; all steps up to `last_step` count as applied.

    Raise MemoryFileError if another process still has the file, DiskError if files of cold logs cannot be written.
    """
    memory = shard_file(file, layout, server, servers, ranks, keep=False)
    shard = Shard(layout, server, servers, memory, ranks, empty, cold_storage)
    memory.state = LOADING
    shard.begin_cold()
    shard.applied.begin(last_step)
    shard.words[0] = journal.IDLE
    return shard


def attach(
    file: int,
    layout: EmbeddingLayout,
    server: int,
    servers: int,
    ranks: int,
    empty: Empty = np.empty,
    max_deaths: int | None = None,
    cold_storage: ColdStorage | None = None,
) -> tuple[Shard, Repairs]:
    """Continue the shard of a process that has ended; return it and its repairs.

    Raise MemoryFileError if another process has the file, if it is of another layout or version, if its rows were not
    loaded whole, and if its index or a cold log is damaged; PoisonError if more than `max_deaths` processes have died
    at the pending request.
    """
    memory = shard_file(file, layout, server, servers, ranks, keep=True)
    shard = Shard(layout, server, servers, memory, ranks, empty, cold_storage)
    try:
        shard.record.count_death(max_deaths)
        return shard, _repair(shard)
    except BaseException:
        memory.close()
        raise


def _repair(shard: Shard) -> Repairs:
    """Repair the change that a kill interrupted; raise MemoryFileError if the index is damaged."""
    # A kill may interrupt this too; the next process begins again.
    word = int(shard.words[journal.PROGRESS])
    progress, request = KernelProgress.of(word), shard.pending
    new_key, row = progress.adding and not progress.idle, not (progress.adding or progress.idle)
    # Before the check of the index, which an interrupted insertion leaves inconsistent.
    returning = KernelProgress.of(int(shard.return_words[journal.PROGRESS]))
    if returning.adding and not returning.idle:
        _carry_out_entry(shard, shard.returning[returning.group], returning)
        shard.return_words[journal.PROGRESS] = journal.IDLE
    if new_key:
        _carry_out_entry(shard, shard.tables[progress.group], progress)
    for store in shard.stores:
        store.used = check_store(store, shard.counts.rows())
        if store.cold is not None:
            try:
                rows = shard.counts.cold_rows(store.cold)[[table.number for table in store.group.tables]]
                store.cold.attach(store.index, int(rows.sum()))
            except DiskError as error:
                raise MemoryFileError(f"{error}: {LOAD}") from error
    if row:
        _write_row_back(shard, progress)
    # No entry is valid any more: the new key has its row, and the change of the old row has not begun.
    shard.words[journal.PROGRESS] = (word + int(new_key)) | int(journal.IDLE)
    shard.applied.repair()
    if request is not None and progress.group == len(shard.stores):
        shard.finish(request)
    return Repairs(sum(store.used for store in shard.stores), row, new_key, request)


def _carry_out_entry(shard: Shard, table: KernelTable, at: KernelProgress) -> None:
    """Execute the valid entry of a new key again."""
    new_keys.carry_out(table, int(shard.look_ups[at.group]) % 256, at.position)


def _write_row_back(shard: Shard, at: KernelProgress) -> None:
    """Restore the logged old content of the row that an update was changing."""
    store, turn = shard.stores[at.group], at.position % 2
    start, old = int(shard.words[int(journal.UNDO) + turn]), shard.old_rows[at.group].reshape(2, -1)[turn]
    store.rows.arena[start : start + store.group.width] = old[: store.group.width]


def shard_file(file: int, layout: EmbeddingLayout, server: int, servers: int, ranks: int, keep: bool) -> MemoryFile:
    """Open the file of a shard, `keep` its content, and reserve address space for its full capacity.

    Raise the errors of `MemoryFile`.
    """
    nbytes = 2 * HUGE_PAGE + ranks * SPAN
    nbytes += address_space(ranks, len(layout.groups)) + (160 + 16 * len(layout.groups)) * (layout.salts().size + 64)
    for group in layout.groups:
        partitions = len(partitions_of(group.partitions, server, servers))
        index = partitions * (group.buckets * 64 + 4)
        nbytes += index + partitions * group.rows_per_partition * (group.width * 4 + 3)
        nbytes += partitions * (group.sketch_lines * LINE_BYTES + group.rows_per_partition * USES_BYTES)
        nbytes += 2 * 16 * whole_lines(group.width) + 12 * HUGE_PAGE
        if group.cold_bytes and partitions:
            nbytes += (
                geometry(group, partitions).buffer_blocks * geometry(group, partitions).block_bytes + 2 * HUGE_PAGE
            )
    return MemoryFile(file, f"{layout!r} {server} {servers} {ranks}", nbytes, keep)
