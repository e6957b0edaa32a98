"""A shard whose whole state lies in a memory file, so that a process that inherits the file can repair it."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import DiskError, MemoryFileError
from persia_cli.kernels.rows.optimizers import Rule
from persia_cli.kernels.table import check, journal, look_up, new_keys, update
from persia_cli.kernels.table.journal import whole_lines
from persia_cli.kernels.table.look_up import FoundRows
from persia_cli.kernels.table.old_rows import OldRows
from persia_cli.kernels.toolchain.memory import HUGE_PAGE, Empty
from persia_cli.store.checkpoints.snapshot import NOTHING
from persia_cli.store.cold.cold_rows import ColdPlace
from persia_cli.store.cold.geometry import geometry
from persia_cli.store.layout import LINE_BYTES, USES_BYTES, EmbeddingLayout, partitions_of
from persia_cli.store.memory.answers import NO_ROW_BIT, Answer, LastAnswers, address_space
from persia_cli.store.memory.applied_steps import SPAN
from persia_cli.store.memory.memory_file import LOAD, LOADING, SERVING, MemoryFile
from persia_cli.store.memory.progress import LOOK_UP, UPDATE, BatchRequest, ProgressRecord
from persia_cli.store.row_store import Floats, Keys, RowStore, Tables
from persia_cli.store.shard import Bytes, Halves, Rows, Shard
from persia_cli.store.wire_rows import row_bytes

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


class KernelProgress(NamedTuple):
    """The work in progress, decoded from the word of a journal."""

    idle: bool
    """True if no note is valid."""
    adding: bool
    """True if a look-up was giving rows to new keys."""
    group: int
    position: int

    @classmethod
    def of(cls, word: int) -> "KernelProgress":
        """Decode a word."""
        shift = int(journal.GROUP)
        group = (word & ~int(journal.IDLE | journal.ADDING)) >> shift
        return cls(bool(word & int(journal.IDLE)), bool(word & int(journal.ADDING)), group, word & ((1 << shift) - 1))


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
    own = [table.number for table in store.group.tables]
    of_table = _rows_of_tables(store.index.tables[:used], rows_of_tables.size)
    if int(of_table[own].sum()) != used:
        raise MemoryFileError(f"{where}: a row is of a table that is not in the group; {LOAD}")
    if (of_table[own] != rows_of_tables[own]).any():
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


AHEAD = 32 << 20
"""Bytes of rows that are moved into huge pages ahead of use: each call for it waits for all processors once."""
FEW, INDEX_AT_ONCE = 1 << 16, 8 << 20
"""An index is in small pages up to so many rows, so that small tables take little memory; then each look-up moves so
many bytes of it into huge pages."""


class RecoverableShard(Shard):
    """A shard in a memory file: `create` begins one, `attach` continues that of a process that has ended.

    The parent of the server owns the file (`memory_file.new_file`), and its descriptor is inherited. A new shard counts
    as loading, and cannot be taken over, until `serve` is called. From then on each look-up of training and each update
    of a whole batch (`answer_all`, `update_all`) is a *request*. It is recorded, and a journal (`kernels.journal`) has
    its position; at its end its steps are marked in `applied`. `attach` repairs the row or key that was being changed.
    The unfinished request is `pending` then: its senders repeat it, and it continues at its position. Until then no
    other request may change rows.

    The file lacks rows of look-ups for their updates (they are searched again), and copies for a save in progress.
    """

    def __init__(
        self,
        memory: MemoryFile,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        ranks: int,
        empty: Empty = np.empty,
        cold_place: ColdPlace | None = None,
    ) -> None:
        self.memory = memory
        self.words: NDArray[np.uint64] = memory.array(8, np.uint64)
        self._notes: NDArray[np.uint64] = memory.array(2 * int(journal.NOTE), np.uint64)
        self.answers = LastAnswers(memory.array, ranks, len(layout.groups))
        super().__init__(layout, server, servers, empty, memory.array, ranks, cold_place)
        groups = len(layout.groups)
        self._unknown = np.zeros(1, np.int64)
        """Number of the new keys of a look-up that is no request."""
        self.record = ProgressRecord(
            memory.array, ranks, groups, [self._counts.hits, *self._gradients, self._look_ups, self._updates]
        )
        self._old_rows = [memory.array(2 * journal.whole_lines(group.width), np.float32) for group in layout.groups]
        self._backed, self._index_backed = [0] * groups, [0] * groups
        self._rank: int | None = None
        """The rank of the look-up that is carried out as a request."""
        self._done, self._publishes = 0, True

    @classmethod
    def create(
        cls,
        file: int,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        ranks: int,
        last_step: int = -1,
        empty: Empty = np.empty,
        cold_place: ColdPlace | None = None,
    ) -> "RecoverableShard":
        """Begin an empty shard in a file, whose content is lost; all steps up to `last_step` count as applied.

        Raise MemoryFileError if another process still has the file, DiskError if files of cold logs cannot be written.
        """
        memory = shard_file(file, layout, server, servers, ranks, keep=False)
        shard = cls(memory, layout, server, servers, ranks, empty, cold_place)
        shard.memory.state = LOADING
        shard.begin_cold()
        shard.applied.begin(last_step)
        shard.words[0] = journal.IDLE
        return shard

    @classmethod
    def attach(
        cls,
        file: int,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        ranks: int,
        empty: Empty = np.empty,
        max_deaths: int | None = None,
        cold_place: ColdPlace | None = None,
    ) -> tuple["RecoverableShard", Repairs]:
        """Continue the shard of a process that has ended; return it and its repairs.

        Raise MemoryFileError if another process has the file, if it is of another layout or version, if its rows were
        not loaded whole, and if its index or a cold log is damaged; PoisonError if more than `max_deaths` processes
        have died at the pending request.
        """
        memory = shard_file(file, layout, server, servers, ranks, keep=True)
        shard = cls(memory, layout, server, servers, ranks, empty, cold_place)
        try:
            shard.record.count_death(max_deaths)
            return shard, shard._repair()
        except BaseException:
            shard.memory.close()
            raise

    def serve(self) -> None:
        """Record that all rows are loaded, so that another process may take over from now on."""
        self.memory.state = SERVING

    @property
    def pending(self) -> BatchRequest | None:
        """The unfinished request, as in `Shard`."""
        return self.record.request

    def answer_all(
        self, groups: Sequence[tuple[Keys, Tables]], step: int, rank: int, batch: Hashable | None
    ) -> list[Answer]:
        """Return the result of `answer` with `create` for each group, as one request; mark its step as looked up."""
        request = BatchRequest(LOOK_UP, step, (rank,))
        self._bring_back_all(groups, step)
        if self.pending is None:
            self.answers.begin(rank)
        at, self._rank = self._begin(request, groups), rank
        answers = []
        for number, group in enumerate(groups):
            if number > at.group or (number == at.group and not at.adding):
                answers.append(self.answer(number, *group, step, True, batch))
            else:
                answers.append(self._answer_again(number, *group, step, at.position if number == at.group else None))
        self._rank = None
        self.finish(request)
        return answers

    def update_all(
        self,
        groups: Sequence[tuple[Keys, Tables, Bytes | Floats]],
        step: int,
        ranks: Sequence[int],
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Call `update` for each group, as one request; mark its step as applied for the ranks."""
        request = BatchRequest(UPDATE, step, tuple(ranks))
        self._bring_back_all([group[:2] for group in groups], step, batch)
        at = self._begin(request, groups)
        for number, (keys, tables, gradients) in enumerate(groups):
            # Finished positions are only counted.
            self._done = keys.size if number < at.group else at.position if number == at.group else 0
            self._publishes = number >= at.group
            self.update(number, keys, tables, gradients, step, batch, reductions)
        self._done, self._publishes = 0, True
        self.finish(request)

    def _begin(self, request: BatchRequest, groups: Sequence[tuple[Any, ...]]) -> KernelProgress:
        """Record a request, or that a pending one is repeated; return the position at which to continue."""
        keys = [group[0] for group in groups]
        pending = self.pending
        if pending is not None:
            assert pending == request, f"{request} before {pending} was repeated"
            at = KernelProgress.of(int(self.words[journal.PROGRESS]))
            self.record.go_on(keys)
            return at
        # Before the record: the position of the last request must not be read as one of this request.
        self.words[journal.PROGRESS] = journal.IDLE
        self.record.begin(request, keys)
        return KernelProgress.of(int(journal.IDLE))

    def finish(self, request: BatchRequest) -> None:
        """Mark the steps of a finished request, and end it. A repeat changes nothing."""
        for rank in request.ranks:
            if request.kind == UPDATE:
                self.applied.mark(rank, request.step)
            else:
                self.answers.end(rank, request.step)
                self.applied.mark_looked_up(rank, request.step)
        if request.kind == UPDATE:
            # From the counter before the request, so that finishing it twice, after a kill here, counts once.
            self._updates[0] = self.record.before(self._updates) + 1
        self.record.end()
        self.words[journal.PROGRESS] = journal.IDLE

    def insert(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        last_used: NDArray[np.int64],
        parts: dict[str, Floats],
        frequencies: NDArray[np.uint8] | None = None,
    ) -> int:
        """Call `Shard.insert`; the shard counts as loading until `serve` is called."""
        self.memory.state = LOADING
        self._back_rows(group, keys.size)
        self._back_index(group, self.stores[group].used + keys.size, self.stores[group].index.buckets.nbytes)
        return super().insert(group, keys, tables, last_used, parts, frequencies)

    # Kernels

    def journal_of(self, group: int, unknown: NDArray[np.int64], done: int = 0) -> journal.KernelJournal:
        """Return the journal of a group, of whose part of the request the first `done` positions are finished.

        `unknown`, int64[1], gets the number of new keys.
        """
        return journal.KernelJournal(
            words=self.words,
            rows=self._old_rows[group],
            notes=self._notes,
            unknown=unknown,
            group=np.uint64(group) << journal.GROUP,
            done=np.uint64(done),
        )

    def _mark_group_done(self, group: int) -> None:
        """Record that the work on a group is done."""
        self.words[0] = journal.IDLE | (np.uint64(group + 1) << journal.GROUP)

    def _find_or_add(
        self, group: int, old: OldRows, keys: Keys, tables: Tables, step: int, rows: Rows, out: Halves
    ) -> NDArray[np.uint32]:
        self._back_rows(group, keys.size)
        positions, unknown = np.empty(keys.size, np.uint32), self._unknown
        if self._rank is not None:
            positions, unknown = self.answers.space(self._rank, group, keys.size)
        found = FoundRows(rows, positions, out)
        self._carry_out(look_up.look_up, self.journal_of(group, unknown), group, old, keys, tables, step, found)
        own = positions[: int(unknown[0])]
        new = own.copy()
        # `new` is copied before the bit is set, since positions index `rows`; the stored answer has the bit.
        own[rows[new] < 0] |= NO_ROW_BIT
        self._mark_group_done(group)
        return new

    def _answer_again(self, group: int, keys: Keys, tables: Tables, step: int, done: int | None) -> Answer:
        """Answer a group's part of a repeated look-up, finished up to the new key at `done`, or whole (None)."""
        # Known keys were served before, so they are only counted.
        assert self._rank is not None
        store, size = self.stores[group], keys.size
        self._look_ups[group] += 1
        positions, unknown = self.answers.space(self._rank, group, size)
        own = positions[: int(unknown[0])]
        if done is not None:
            self._back_rows(group, size)
            # The bit is set again below, since the rest of the look-up may still add or evict rows.
            own &= ~NO_ROW_BIT
            found = FoundRows(np.empty(size, np.int64), positions, _wire_rows(store, size))
            own_journal = self.journal_of(group, unknown, done)
            self._carry_out(look_up.finish_look_up, own_journal, group, NOTHING, keys, tables, step, found)
        block, without = self.answer(group, keys, tables, step, create=False)
        if done is not None:
            own[np.isin(own, without.rowless)] |= NO_ROW_BIT
            self._mark_group_done(group)
        new = self.answers.new_keys(self._rank, group)
        # `answer` without `create` counts nothing, and the counters were reset, so the known keys are counted here.
        hits = self._counts.hits
        hits += np.bincount(tables, minlength=hits.size) - np.bincount(tables[new.positions], minlength=hits.size)
        return block, new

    def _change(self, group: int, rule: Rule, keys: Keys, rows: Rows, tables: Tables, gradients: NDArray[Any]) -> None:
        store = self.stores[group]
        update.JOURNALED_UPDATES[store.group.optimizer.kind](
            self.journal_of(group, self._unknown, self._done),
            store.rows,
            rule,
            keys,
            rows,
            tables,
            gradients,
            self._gradients,
        )
        if self._publishes:
            self._mark_group_done(group)

    def _back_rows(self, group: int, more: int) -> None:
        """Move the memory of the next `more` rows into huge pages."""
        store = self.stores[group]
        self._back_index(group, store.used, INDEX_AT_ONCE)
        arena = store.rows.arena
        if min((store.used + more) * store.group.width * 4, arena.nbytes) > self._backed[group]:
            until = min((store.used + more) * store.group.width * 4 + AHEAD, arena.nbytes)
            self.memory.back(arena, self._backed[group], until)
            self._backed[group] = until // HUGE_PAGE * HUGE_PAGE

    def _back_index(self, group: int, rows: int, nbytes: int) -> None:
        """Move the next bytes of the index of so many rows into huge pages, unless they are few."""
        buckets, start = self.stores[group].index.buckets, self._index_backed[group]
        if rows > FEW and start < buckets.nbytes:
            self._index_backed[group] = min(start + nbytes, buckets.nbytes)
            self.memory.back(buckets, start, self._index_backed[group])

    # Repairs

    def _repair(self) -> Repairs:
        """Repair the change that a kill interrupted; raise MemoryFileError if the index is damaged."""
        # A kill may interrupt this too; the next process begins again.
        word = int(self.words[journal.PROGRESS])
        progress, request = KernelProgress.of(word), self.pending
        new_key, row = progress.adding and not progress.idle, not (progress.adding or progress.idle)
        # Before the check of the index, which an interrupted insertion leaves inconsistent.
        returning = KernelProgress.of(int(self._return_words[journal.PROGRESS]))
        if returning.adding and not returning.idle:
            group = returning.group
            self._carry_out_note(self._return_journal(group), group, returning.position)
            self._return_words[journal.PROGRESS] = journal.IDLE
        if new_key:
            self._carry_out_note(self.journal_of(progress.group, self._unknown), progress.group, progress.position)
        for store in self.stores:
            store.used = check_store(store, self.rows_of_tables())
            if store.cold is not None:
                try:
                    rows = self._cold_rows(store.cold)[[table.number for table in store.group.tables]]
                    store.cold.take_over(store.index, int(rows.sum()))
                except DiskError as error:
                    raise MemoryFileError(f"{error}: {LOAD}") from error
        if row:
            self._write_row_back(progress.group, progress.position)
        # No note is valid any more: the new key has its row, and the change of the old row has not begun.
        self.words[journal.PROGRESS] = (word + int(new_key)) | int(journal.IDLE)
        self.applied.repair()
        if request is not None and progress.group == len(self.stores):
            self.finish(request)
        return Repairs(sum(store.used for store in self.stores), row, new_key, request)

    def rows_of_tables(self) -> NDArray[np.int64]:
        """Return the number of rows of each table, int64[tables], by its counters."""
        return self._counts.admitted + self._loads.loaded + self._counts.returned - self._counts.evicted

    def _carry_out_note(self, of: journal.KernelJournal, group: int, position: int) -> None:
        """Execute the valid note of a new key again."""
        store, number = self.stores[group], int(self._look_ups[group]) % 256
        arguments = store.index, store.rows, store.log, self._row_inits[group], self._counts, number, position
        new_keys.carry_out(of, *arguments)

    def _write_row_back(self, group: int, position: int) -> None:
        """Restore the old content, which is noted, of the row that an update was changing."""
        store, turn = self.stores[group], position % 2
        at, old = int(self.words[int(journal.UNDO) + turn]), self._old_rows[group].reshape(2, -1)[turn]
        store.rows.arena[at : at + store.group.width] = old[: store.group.width]


def _wire_rows(store: RowStore, size: int) -> Halves:
    """Return memory for encoded rows that are not sent."""
    return np.empty(size * row_bytes(store.group.dim, store.group.wire), np.uint8).view(np.uint16)


def shard_file(file: int, layout: EmbeddingLayout, server: int, servers: int, ranks: int, keep: bool) -> MemoryFile:
    """Open the file of a recoverable shard, `keep` its content, and reserve address space for its full capacity.

    Raise the errors of `MemoryFile`.
    """
    nbytes = 2 * HUGE_PAGE + ranks * SPAN
    nbytes += address_space(ranks, len(layout.groups)) + (160 + 16 * len(layout.groups)) * (layout.salts().size + 64)
    for group in layout.groups:
        own = len(partitions_of(group.partitions, server, servers))
        index = own * (group.buckets * 64 + 4)
        nbytes += index + own * group.rows_per_partition * (group.width * 4 + 3)
        nbytes += own * (group.sketch_lines * LINE_BYTES + group.rows_per_partition * USES_BYTES)
        nbytes += 2 * 16 * whole_lines(group.width) + 12 * HUGE_PAGE
        if group.cold_bytes and own:
            nbytes += geometry(group, own).buffer_blocks * geometry(group, own).block_bytes + 2 * HUGE_PAGE
    return MemoryFile(file, f"{layout!r} {server} {servers} {ranks}", nbytes, keep)
