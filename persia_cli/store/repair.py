"""The repair of a kept shard: what a process does with the memory of another that was killed."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import MemoryFileError, PoisonError
from persia_cli.kernels import check, journal
from persia_cli.store.answers import NewKeys
from persia_cli.store.inbox import FREE, LOOK_UP, UPDATE, Arrays, KeptRequest
from persia_cli.store.memory_file import LOAD
from persia_cli.store.row_store import RowStore, Tables
from persia_cli.store.shard_file import DEATHS

if TYPE_CHECKING:
    from persia_cli.store.kept_shard import KeptShard

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
    """What was found and done when a process took over the memory of another."""

    rows: int
    """Rows in use."""
    row: bool
    """True if the row of an update was written back, which was or might have been changed in part."""
    new_key: bool
    """True if a new key was given its row once more."""
    request: KeptRequest | None
    """The look-up or update that was under way and has been finished; None if there was none."""


class UnderWay(NamedTuple):
    """The word of a journal that says what is under way."""

    bare: bool
    """True if no note is valid."""
    adding: bool
    """True if a look-up was giving rows to new keys."""
    group: int
    position: int

    @classmethod
    def of(cls, word: int) -> "UnderWay":
        """Return what a word says."""
        shift = int(journal.GROUP)
        group = (word & ~int(journal.BARE | journal.ADDING)) >> shift
        return cls(bool(word & int(journal.BARE)), bool(word & int(journal.ADDING)), group, word & ((1 << shift) - 1))


def repair_shard(shard: "KeptShard") -> Repairs:
    """Repair what a kill cut in two, check the index, and finish the request that was under way.

    It may be killed itself at any moment, and begun anew. Raises MemoryFileError if index or request are damaged.
    """
    progress, kind = UnderWay.of(int(shard.words[0])), shard.inbox.state
    request, arrays = shard.inbox.under_way() if kind != FREE else (None, [])
    new_key = kind == LOOK_UP and not progress.bare
    if new_key:
        assert request is not None
        shard.carry_out_note(progress.group, progress.position, request.counted)
    for store in shard.stores:
        store.used = check_store(store, shard.rows_of_tables())
    row = kind == UPDATE and not progress.bare
    if row:
        assert request is not None
        _write_row_back(shard, progress, arrays[[part.group for part in request.parts].index(progress.group)])
    shard.applied.repair()
    if request is not None:
        finish = _finish_look_up if kind == LOOK_UP else _finish_update
        finish(shard, request, arrays, progress)
        shard.finish(kind, request)
    return Repairs(sum(store.used for store in shard.stores), row, new_key, request)


def count_death(shard: "KeptShard", most: int | None) -> None:
    """Count the process that has died at the request under way, if there is one.

    Raises PoisonError if that makes more than `most`.
    """
    if shard.inbox.state == FREE:
        return
    shard.words[DEATHS] += np.uint64(1)
    deaths = int(shard.words[DEATHS])
    if most is not None and deaths > most:
        request, _ = shard.inbox.under_way()
        what = "look-up" if shard.inbox.state == LOOK_UP else "update"
        ranks = f"rank{'' if len(request.ranks) == 1 else 's'} {', '.join(map(str, request.ranks))}"
        raise PoisonError(
            f"{deaths} processes have died at the same request, the {what} of step {request.step} of {ranks}: that "
            "batch is poison, so the job does not go on"
        )


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


def _write_row_back(shard: "KeptShard", progress: UnderWay, arrays: Arrays) -> None:
    store, at = shard.stores[progress.group], slice(progress.position, progress.position + 1)
    row, width = int(store.find(arrays.keys[at], arrays.tables[at])[0]), store.group.width
    old = shard.journal_of(progress.group).rows.reshape(2, -1)[progress.position % 2, :width]
    store.rows.arena[row * width : (row + 1) * width] = old


def _finish_look_up(shard: "KeptShard", request: KeptRequest, arrays: list[Arrays], progress: UnderWay) -> None:
    """Do the rest of a look-up, and keep its new keys if it is counted, since its answer is never sent."""
    new = []
    for part, own in zip(request.parts, arrays, strict=True):
        if part.group >= progress.group:
            under_way = part.group == progress.group and progress.adding
            done = progress.position + (0 if progress.bare else 1)
            shard.look_up_again(part.group, own, request, done if under_way else None)
        positions = own.last[: int(shard.journal_of(part.group).unknown[0])].astype(np.uint32)
        rows = shard.stores[part.group].find(own.keys[positions], own.tables[positions])
        new.append(NewKeys(positions, positions[rows < 0]))
    if request.counted:
        for rank in request.ranks:
            shard.answers.keep(rank, request.step, new)


def _finish_update(shard: "KeptShard", request: KeptRequest, arrays: list[Arrays], progress: UnderWay) -> None:
    """Do the rest of an update. Gradients that are done are only counted, since a count may have been cut off."""
    shard.restore_gradient_counts()
    for part, own in zip(request.parts, arrays, strict=True):
        if part.group < progress.group:
            shard.count_again(part.group, own, request)
        else:
            shard.update_again(part.group, own, request, progress.position if part.group == progress.group else 0)
