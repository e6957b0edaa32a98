"""A cut: the rows of a shard as they are at one moment, taken portion by portion while the shard goes on.

When a cut begins only the sketch is copied, if anything is counted in it. `next_portion` copies the rows of the next
few partitions. Before a row changes whose turn has not come, the shard has it kept (`persia_cli.kernels.old_rows`), in
room for a fraction of the rows. If that is full, more portions must be taken first. All of this happens on the thread
that owns the shard, one call after the other, so that no row is ever read while it is written.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import old_rows
from persia_cli.kernels.memory import zeros
from persia_cli.kernels.old_rows import Listed, OldRows
from persia_cli.kernels.row_order import order_rows
from persia_cli.kernels.sightings import WORDS
from persia_cli.store.layout import GroupSpec
from persia_cli.store.row_store import Floats, Keys, RowStore, Tables

PORTION_BYTES = 2**22
"""Approximate size of a portion, which takes about two milliseconds to copy; at least one partition."""
KEPT_FRACTION = 0.04
"""Largest fraction of the rows that are kept as they were at the same time."""
KEPT_BYTES = 2**22
"""Size of the rows that may be kept whatever the fraction: small stores are kept whole."""
ENTRY_BYTES = 8 + 4 + 4 + 2 + 2 * 8
"""Memory of a kept row in addition to its words."""

Lines = NDArray[np.uint64]
NO_LINES = np.empty(0, np.uint64)


class CutRows(NamedTuple):
    """Rows of a cut, those of some partitions, ordered by key, then table number."""

    keys: Keys
    tables: Tables
    last_used: NDArray[np.uint32]
    uses: NDArray[np.uint32]
    """As in the index, 0 where it does not keep them."""
    values: Floats
    """float32 of any size: all embeddings, then the values of each state of the optimizer, then room that is free."""
    held: NDArray[np.int64]
    """int64[tables]: rows of each table in these partitions, also those that did not change."""
    first_line: int
    """Number of the first of these lines, counted from the server's own first one."""
    lines: Lines
    """uint64[8 * lines]: the sketch of these partitions, empty where there is none or nothing was counted in it."""

    def parts(self, group: GroupSpec) -> dict[str, Floats]:
        """Return the embedding and each optimizer state by name, float32[n, columns], without a copy."""
        parts, at = {}, 0
        for name, columns in group.vectors.items():
            parts[name] = self.values[at : at + self.keys.size * columns].reshape(-1, columns)
            at += parts[name].size
        return parts


def empty_save_area(partitions: int = 0, rows: int = 0, places: int = 0, width: int = 0) -> OldRows:
    """Return room for old rows, all of it free; without arguments that of a store without a cut."""
    return OldRows(
        saved=zeros(rows, np.uint8),
        keys=zeros(places, np.uint64),
        last_used=zeros(places, np.uint32),
        uses=zeros(places, np.uint32),
        tables=zeros(places, np.uint16),
        words=zeros(places * width, np.float32),
        # The lowest places are taken first and again, so that memory is used only as far as it is needed.
        free=np.arange(places - 1, -1, -1, dtype=np.int64),
        counts=np.array([places, rows]),
        heads=np.full(partitions, old_rows.NONE, np.int64),
        following=zeros(places, np.int64),
    )


def _room_of(store: RowStore, places: int) -> OldRows:
    """Return the room that the last cut of a store has left, or new room if there is none or it is too small.

    To take new memory from the system takes longer than to copy rows to it.
    """
    left, store.spare_room = store.spare_room, None
    if left is not None and left.saved.size >= store.used and left.keys.size >= places:
        return left
    rows, places = store.used + store.used // 8, places + places // 8
    return empty_save_area(len(store.partitions), rows, places, store.group.width)


def _emptied(room: OldRows, rows: int, places: int, width: int) -> OldRows:
    """Return a part of room that was used before, all of it free."""
    room.saved[:rows] = 0
    room.heads[:] = old_rows.NONE
    return OldRows(
        saved=room.saved[:rows],
        keys=room.keys[:places],
        last_used=room.last_used[:places],
        uses=room.uses[:places],
        tables=room.tables[:places],
        words=room.words[: places * width],
        free=np.arange(places - 1, -1, -1, dtype=np.int64),
        counts=np.array([places, rows]),
        heads=room.heads,
        following=room.following[:places],
    )


NOTHING = empty_save_area()


class StoreCut:
    """The cut of one row store."""

    def __init__(self, store: RowStore, since: int = 0, places: int | None = None) -> None:
        """Begin it: of the rows last used in step `since` or later.

        `places` is the number of rows that can be kept, by default as many as the constants say.
        """
        self._store, self._since = store, since
        self._states = np.array(list(store.group.optimizer.states(store.group.dim).values()), np.int64)
        self._tables = 1 + max(table.number for table in store.group.tables)
        self._room = _room(0)
        self._starts = np.empty(2, np.int64)
        self._given_back: deque[Floats] = deque()
        nbytes = store.group.width * 4 + ENTRY_BYTES
        if places is None:
            places = min(store.used, max(int(store.used * KEPT_FRACTION), KEPT_BYTES // nbytes))
        self._room_for_old = _room_of(store, places)
        self.old = _emptied(self._room_for_old, store.used, places, store.group.width)
        self._sketch: Lines = store.index.sketch.copy() if store.has_sightings else NO_LINES
        windows = max(1, (store.used * nbytes + self._sketch.nbytes) // PORTION_BYTES)
        windows = min(windows, len(store.partitions))
        self._edges = [len(store.partitions) * edge // windows for edge in range(windows + 1)] if windows else [0]
        self.over = len(self._edges) == 1

    def next_portion(self) -> CutRows:
        """Copy the rows and the sketch of the next partitions; sets `over` with the last of them."""
        store, held = self._store, np.zeros(self._tables, np.int64)
        first, last = self._edges[:2]
        rows = int(store.index.fill[first:last].sum())
        if rows >= self._room.keys.size:
            self._room = _room(rows + rows // 8 + 1)
            self._starts = np.empty(self._room.keys.size + 2, np.int64)
        count = old_rows.list_rows(store.index, self.old, first, last, self._since, self._room, held)
        ordered = _room(count)
        order_rows(self._room, count, ordered, self._starts)
        values = self._memory(count * (store.group.dim + int(self._states.sum())))
        old_rows.take_rows(store.rows, self.old, ordered.sources, self._states, values)
        words = store.group.sketch_lines * int(WORDS)
        lines = self._sketch[first * words : last * words].copy()
        del self._edges[0]
        if len(self._edges) == 1:
            self.drop()
        first_line = first * store.group.sketch_lines
        return CutRows(ordered.keys, ordered.tables, ordered.last_used, ordered.uses, values, held, first_line, lines)

    def drop(self) -> None:
        """Give up what is left of the rows, and leave the room to the store's next cut."""
        if not self.over:
            self._store.spare_room = self._room_for_old
        self.over, self.old = True, NOTHING
        self._sketch = NO_LINES

    def _memory(self, size: int) -> Floats:
        """Return memory for values, if there is some that was given back: new memory costs as much as the copying."""
        with suppress(IndexError):
            if (values := self._given_back.popleft()).size >= size:
                return values
        return np.empty(size + size // 8, np.float32)

    def give_back(self, portion: CutRows) -> None:
        """Use the memory of a portion again; another thread may call this."""
        self._given_back.append(portion.values)

    @property
    def is_short(self) -> bool:
        """True if less than half of the room for what changes is left, and more may change than fits."""
        free, unsaved = self.old.counts
        return bool(free < min(unsaved, self.old.free.size // 2))

    def has_room(self, keys: Keys, tables: Tables) -> bool:
        """Return whether what a look-up of the keys may change, or take from others, can be kept."""
        free, unsaved = self.old.counts
        return bool(
            min(keys.size, unsaved) <= free
            or sum(old_rows.count_changing(self._store.index, self.old, keys, tables)) <= free
        )

    def keep(self, keys: Keys, tables: Tables, evicts: bool, write_on: Callable[[], None]) -> None:
        """Keep the rows of keys before they change.

        With `evicts`, for a look-up, also leave room for rows that new keys take. Calls `write_on`, which is to take a
        portion, as often as there is no room.
        """
        store, at = self._store, 0
        while True:
            at = old_rows.keep_before_write(store.index, store.rows, self.old, keys, tables, at)
            if at == keys.size:
                break
            write_on()
        while evicts and not self.has_room(keys, tables):
            write_on()


def _room(size: int) -> Listed:
    return Listed(
        np.empty(size, np.uint64), np.empty(size, np.uint16), np.empty(size, np.uint32), np.empty(size, np.uint32),
        np.empty(size, np.int64),
    )  # fmt: skip


class ShardCut:
    """The cuts of all row stores of a shard, begun at the same moment and taken one after the other."""

    def __init__(
        self, stores: Sequence[RowStore], look_ups: Sequence[int], since: Sequence[int], places: int | None = None
    ) -> None:
        """Begin it; `look_ups` are the numbers of each group's look-ups so far, `since` the steps as in `StoreCut`."""
        self._cuts = [StoreCut(store, step, places) for store, step in zip(stores, since, strict=True)]
        self._look_ups = tuple(look_ups)
        self.write_on: Callable[[], None] = self._refuse
        """Called when a row must be kept and there is no room; takes a portion, or raises."""
        self.pauses = 0
        """Number of times that happened."""

    def _refuse(self) -> None:
        raise RuntimeError("a row of the cut changes, and nobody takes the rows before it")

    @property
    def over(self) -> bool:
        """True if all rows are taken."""
        return all(cut.over for cut in self._cuts)

    def next_portion(self) -> tuple[int, CutRows, bool]:
        """Copy the next rows; returns their group, the rows, and whether they are the last of the group."""
        group = next(number for number, cut in enumerate(self._cuts) if not cut.over)
        portion = self._cuts[group].next_portion()
        return group, portion, self._cuts[group].over

    def portions(self, group: int) -> Iterator[CutRows]:
        """Yield what is left of a group's rows; those of the groups before it must be taken.

        A portion must not be used any more when the next one is asked for.
        """
        while not self._cuts[group].over:
            portion = self.next_portion()[1]
            yield portion
            self.give_back(group, portion)

    def give_back(self, group: int, portion: CutRows) -> None:
        """Use the memory of a portion again; another thread may call this."""
        self._cuts[group].give_back(portion)

    def drop(self) -> None:
        """Give up what is left of the rows, because they cannot be written: from now on none is kept."""
        for cut in self._cuts:
            cut.drop()

    @property
    def is_short(self) -> bool:
        """True if, for some store, rows should be taken soon, lest there be no room for those that change."""
        return any(cut.is_short for cut in self._cuts)

    def has_room(self, group: int, keys: Keys, tables: Tables) -> bool:
        """Return whether a look-up of the keys would not have to wait until more portions are taken."""
        return self._cuts[group].has_room(keys, tables)

    def before_look_up(self, group: int, keys: Keys, tables: Tables) -> OldRows:
        """Keep the rows of keys that are looked up; returns room for the rows that new keys take from others."""
        self._keep(group, keys, tables, evicts=True)
        return self._cuts[group].old

    def before_update(self, group: int, keys: Keys, tables: Tables, looked_up: int | None) -> None:
        """Keep the rows of keys that are updated; `looked_up` is the number of the look-up that found the same keys.

        What such a look-up found after the cut began, it has kept; keys that it did not find have no row of the cut.
        """
        if looked_up is None or looked_up <= self._look_ups[group]:
            self._keep(group, keys, tables, evicts=False)

    def _keep(self, group: int, keys: Keys, tables: Tables, evicts: bool) -> None:
        def write_on() -> None:
            self.pauses += 1
            self.write_on()

        self._cuts[group].keep(keys, tables, evicts, write_on)
