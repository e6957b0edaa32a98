"""A shard whose whole state lies in a memory file, so that a process that inherits the file can go on after a death."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import journal, look_up, new_keys, update
from persia_cli.kernels.look_up import FoundRows
from persia_cli.kernels.memory import HUGE_PAGE, Empty
from persia_cli.kernels.new_keys import Counts
from persia_cli.kernels.old_rows import OldRows
from persia_cli.kernels.optimizers import Rule
from persia_cli.store.answers import Answer, LastAnswers
from persia_cli.store.applied_steps import AppliedSteps
from persia_cli.store.cut import NOTHING
from persia_cli.store.inbox import LOOK_UP, UPDATE, Arrays, Before, Inbox, KeptRequest, Part
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.memory_file import LOADING, SERVING, MemoryFile
from persia_cli.store.repair import Repairs, count_death, repair_shard
from persia_cli.store.row_store import Floats, Keys, RowStore, Tables
from persia_cli.store.shard import Bytes, Halves, Rows, Shard
from persia_cli.store.shard_file import DEATHS, SAVE, UPDATES, UPDATES_BEFORE, shard_file, whole_lines
from persia_cli.store.wire_rows import row_bytes

AHEAD = 32 << 20
"""Bytes of rows that are put into huge pages ahead of use: each call for it waits for all processors once."""


class KeptShard(Shard):
    """A shard in a memory file: `create` begins one, `attach` goes on with that of a process that has ended.

    The file belongs to who starts the server (`memory_file.new_file`), and its number is inherited. A new shard counts
    as loading, and cannot be taken over, until `serve` is called. From then on each look-up of training and each update
    is a *request*: it is copied into the file, noted in a journal while it is carried out (`kernels.journal`), its
    steps are marked in `applied`, and it is over. `attach` finishes the request that was under way, alone: nobody has
    to send it again, and who does is answered as before. `answer_all` and `update_all` are those of a whole batch.

    What is not kept: rows of look-ups for their updates (they are searched again), and copies for a save under way.
    """

    def __init__(
        self,
        memory: MemoryFile,
        layout: EmbeddingLayout,
        server: int,
        servers: int,
        ranks: int,
        empty: Empty = np.empty,
    ) -> None:
        self.memory = memory
        self.words: NDArray[np.uint64] = memory.array(8, np.uint64)
        self._notes: NDArray[np.uint64] = memory.array(2 * int(journal.NOTE), np.uint64)
        self.inbox = Inbox(memory)
        self.applied = AppliedSteps(memory.array, ranks)
        self.answers = LastAnswers(memory.array, ranks, len(layout.groups))
        super().__init__(layout, server, servers, empty, memory.array)
        groups = len(layout.groups)
        self._unknown: NDArray[np.uint64] = memory.array(groups, np.uint64)
        tables = self.salts.size
        self.before = Before(
            hits=memory.array(tables, np.int64),
            gradients=memory.array(2 * tables, np.int64).reshape(2, tables),
            look_ups=memory.array(groups, np.int64),
        )
        self._old_rows = [memory.array(2 * whole_lines(group.width), np.float32) for group in layout.groups]
        self._backed = [0] * groups
        self._new: dict[int, NDArray[np.uint64]] = {}
        """Where the look-up that is under way writes positions of new keys, by group."""
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
    ) -> "KeptShard":
        """Begin an empty shard in a file, whose content is lost; all steps up to `last_step` count as applied.

        Raises MemoryFileError if another process still has the file.
        """
        shard = cls(shard_file(file, layout, server, servers, ranks, keep=False), layout, server, servers, ranks, empty)
        shard.memory.state = LOADING
        shard.applied.begin(last_step)
        shard.words[0] = journal.BARE
        for store in shard.stores:
            shard.memory.back(store.index.buckets, 0, store.index.buckets.nbytes)
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
        most_deaths: int | None = None,
    ) -> tuple["KeptShard", Repairs]:
        """Go on with the shard of a process that has ended; returns it and what was repaired.

        Raises MemoryFileError, saying why, if another process has the file, if it is of another layout or version,
        if its rows were not loaded whole, and if its index or request is damaged; PoisonError if more than
        `most_deaths` processes have died at the request that is under way.
        """
        shard = cls(shard_file(file, layout, server, servers, ranks, keep=True), layout, server, servers, ranks, empty)
        try:
            count_death(shard, most_deaths)
            return shard, repair_shard(shard)
        except BaseException:
            shard.memory.close()
            raise

    def serve(self) -> None:
        """Say that all rows are loaded, so that another process may take over from now on."""
        self.memory.state = SERVING

    @property
    def updates(self) -> int:
        """Number of updates carried out, by all processes that have had the shard."""
        return int(self.words[UPDATES])

    @property
    def saves(self) -> NDArray[np.uint64]:
        """uint64[1]: the number of the last save that a process with the shard has begun; set when one begins."""
        return self.words[SAVE : SAVE + 1]

    def answer_all(
        self, groups: Sequence[tuple[Keys, Tables]], step: int, rank: int, batch: Hashable | None, counted: bool = True
    ) -> list[Answer]:
        """Return what `answer` with `create` returns for each group, as one request; marks its step looked up."""
        parts = [(number, *group, None) for number, group in enumerate(groups)]
        for number, keys, tables, _ in parts:
            self.check(number, keys, tables, step)
        with self._under_way(LOOK_UP, step, (rank,), counted, parts):
            answers = [
                super(KeptShard, self).answer(number, keys, tables, step, True, batch, counted)
                for number, keys, tables, _ in parts
            ]
            if counted:
                self.answers.keep(rank, step, [new for _, new in answers])
            return answers

    def update_all(
        self,
        groups: Sequence[tuple[Keys, Tables, Bytes | Floats]],
        step: int,
        ranks: Sequence[int],
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Do what `update` does for each group, as one request; its step is marked applied for the ranks."""
        parts = [(number, *group) for number, group in enumerate(groups)]
        with self._under_way(UPDATE, step, tuple(ranks), True, parts, reductions):
            for number, keys, tables, gradients in parts:
                super().update(number, keys, tables, gradients, step, batch, reductions)

    def answer(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        step: int,
        create: bool,
        batch: Hashable | None = None,
        counted: bool = True,
    ) -> Answer:
        """Do what `Shard.answer` does, with `create` as a request of its own that marks no step."""
        if not create:
            return super().answer(group, keys, tables, step, create, batch, counted)
        self.check(group, keys, tables, step)
        with self._under_way(LOOK_UP, step, (), counted, [(group, keys, tables, None)]):
            return super().answer(group, keys, tables, step, create, batch, counted)

    def update(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        gradients: Bytes | Floats,
        step: int,
        batch: Hashable | None = None,
        reductions: int = 0,
    ) -> None:
        """Do what `Shard.update` does, as a request of its own that marks no step."""
        with self._under_way(UPDATE, step, (), True, [(group, keys, tables, gradients)], reductions):
            super().update(group, keys, tables, gradients, step, batch, reductions)

    def insert(
        self,
        group: int,
        keys: Keys,
        tables: Tables,
        last_used: NDArray[np.int64],
        parts: dict[str, Floats],
        frequencies: NDArray[np.uint8] | None = None,
    ) -> int:
        """Do what `Shard.insert` does; the shard counts as loading until `serve` is called."""
        self.memory.state = LOADING
        self._back_rows(group, keys.size)
        return super().insert(group, keys, tables, last_used, parts, frequencies)

    @contextmanager
    def _under_way(
        self,
        kind: int,
        step: int,
        ranks: tuple[int, ...],
        counted: bool,
        groups: Sequence[tuple[int, Keys, Tables, Bytes | Floats | None]],
        reductions: int = 0,
    ) -> Iterator[None]:
        """Copy a request to the inbox, let the caller carry it out, and mark its steps."""
        parts = tuple(
            Part(number, keys.size)
            if gradients is None
            else Part(number, keys.size, gradients.dtype.str[1:], gradients.shape[1])
            for number, keys, tables, gradients in groups
        )
        request = KeptRequest(step, ranks, counted, parts, reductions)
        arrays = self.inbox.put(request, [group[1:] for group in groups])
        self._new = {part.group: array.last for part, array in zip(parts, arrays, strict=True)}
        self.before.hits[:], self.before.look_ups[:] = self._counts.hits, self._look_ups
        self.before.gradients[:] = self._gradients
        self.words[UPDATES_BEFORE], self.words[DEATHS] = self.words[UPDATES], 0
        self.words[0] = journal.BARE
        self.inbox.begin(kind)
        yield
        self.finish(kind, request)

    def finish(self, kind: int, request: KeptRequest) -> None:
        """Mark the steps of a request that is carried out, and end it."""
        for rank in request.ranks:
            (self.applied.mark if kind == UPDATE else self.applied.mark_looked_up)(rank, request.step)
        if kind == UPDATE:
            self.words[UPDATES] = self.words[UPDATES_BEFORE] + np.uint64(1)
        # Until then the journal says that all groups are done; otherwise a repair would do them again.
        self.inbox.end()
        self.words[0] = journal.BARE

    # Kernels

    def journal_of(self, group: int, done: int = 0) -> journal.KernelJournal:
        """Return the journal of a group, of whose part of the request the first `done` positions are done."""
        return journal.KernelJournal(
            words=self.words,
            rows=self._old_rows[group],
            notes=self._notes,
            unknown=self._unknown[group : group + 1],
            group=np.uint64(group) << journal.GROUP,
            done=np.uint64(done),
        )

    def _over(self, group: int) -> None:
        """Say that the work on a group is done."""
        self.words[0] = journal.BARE | (np.uint64(group + 1) << journal.GROUP)

    def _find_or_add(
        self, group: int, old: OldRows, counts: Counts, keys: Keys, tables: Tables, step: int, rows: Rows, out: Halves
    ) -> NDArray[np.uint64]:
        self._back_rows(group, keys.size)
        found = FoundRows(rows, self._new[group], out)
        arguments = self._look_up_arguments(group, old, counts, keys, tables, step, found)
        self.stores[group].used = look_up.look_up_kept(self.journal_of(group), *arguments)
        self._over(group)
        return found.new

    def _change(self, group: int, rule: Rule, keys: Keys, rows: Rows, tables: Tables, gradients: NDArray[Any]) -> None:
        store = self.stores[group]
        update.UPDATES_KEPT[store.group.optimizer.kind](
            self.journal_of(group, self._done), store.rows, rule, keys, rows, tables, gradients, self._gradients
        )
        if self._publishes:
            self._over(group)

    def _back_rows(self, group: int, more: int) -> None:
        """Put the memory of the next `more` rows into huge pages."""
        store = self.stores[group]
        arena = store.rows.arena
        if min((store.used + more) * store.group.width * 4, arena.nbytes) > self._backed[group]:
            until = min((store.used + more) * store.group.width * 4 + AHEAD, arena.nbytes)
            self.memory.back(arena, self._backed[group], until)
            self._backed[group] = until // HUGE_PAGE * HUGE_PAGE

    # Repairs

    def rows_of_tables(self) -> NDArray[np.int64]:
        """Return the number of rows of each table, int64[tables], as it was counted."""
        return self._counts.admitted + self._loads.loaded - self._counts.evicted

    def carry_out_note(self, group: int, position: int, counted: bool) -> None:
        """Give a row once more to the new key whose note is valid."""
        store, counts = self.stores[group], self._counts if counted else self._uncounted
        number = (int(self.before.look_ups[group]) + 1) % 256
        new_keys.carry_out(
            self.journal_of(group), store.index, store.rows, self._row_inits[group], counts, number, position
        )

    def look_up_again(self, group: int, arrays: Arrays, request: KeptRequest, done: int | None) -> None:
        """Finish a group's part of a look-up: new keys from the one at `done` on, or all of it with None."""
        store, counts = self.stores[group], self._counts if request.counted else self._uncounted
        self._look_ups[group] = self.before.look_ups[group] + 1
        rows, out = np.empty(arrays.keys.size, np.int64), _wire_rows(store, arrays.keys.size)
        if done is None:
            members = self._members[group] > 0
            self._counts.hits[members] = self.before.hits[members]
            self._new = {group: arrays.last}
            self._find_or_add(group, NOTHING, counts, arrays.keys, arrays.tables, request.step, rows, out)
            return
        found = FoundRows(rows, arrays.last, out)
        arguments = self._look_up_arguments(group, NOTHING, counts, arrays.keys, arrays.tables, request.step, found)
        store.used = look_up.finish_look_up(self.journal_of(group, done), *arguments)
        self._over(group)

    def update_again(self, group: int, arrays: Arrays, request: KeptRequest, done: int) -> None:
        """Finish a group's part of an update from position `done` on; gradients before that are only counted."""
        self._done = done
        super().update(group, arrays.keys, arrays.tables, arrays.last, request.step, reductions=request.reductions)
        self._done = 0

    def count_again(self, group: int, arrays: Arrays, request: KeptRequest) -> None:
        """Count the gradients of a group's part of an update that is done."""
        self._publishes = False
        self.update_again(group, arrays, request, arrays.keys.size)
        self._publishes = True

    def restore_gradient_counts(self) -> None:
        """Set the counts of gradients to what they were before the request."""
        for own, before in zip(self._gradients, self.before.gradients, strict=True):
            own[:] = before


def _wire_rows(store: RowStore, size: int) -> Halves:
    """Return memory for rows on the wire that nobody gets."""
    return np.empty(size * row_bytes(store.group.dim, store.group.wire), np.uint8).view(np.uint16)
