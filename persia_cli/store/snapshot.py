"""Snapshots: the rows of a shard at one moment, copied portion by portion while the shard changes.

When a snapshot begins, only the sketch is copied, if it has counts. `next_portion` copies the rows of the next few
partitions. Before a row changes that is not copied yet, the shard has it copied (`kernels.table.old_rows`), into
memory for a fraction of the rows. If that is full, more portions must be taken first.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.table import old_rows
from persia_cli.kernels.table.frequency import WORDS
from persia_cli.kernels.table.old_rows import Listed, OldRows
from persia_cli.kernels.toolchain.memory import zeros
from persia_cli.store.cold.cold_rows import CutSegment
from persia_cli.store.layout import GroupSpec
from persia_cli.store.row_store import Floats, Keys, LeftKeys, RowStore, Tables

PORTION_BYTES = 2**22
"""Approximate size of a portion, which takes about two milliseconds to copy; at least one partition."""
COPIED_FRACTION = 0.04
"""Maximum fraction of the rows that are copied before their turn at the same time."""
COPIED_BYTES = 2**22
"""Size of the rows that may be copied for any fraction: small stores are copied whole."""
ENTRY_BYTES = 8 + 4 + 4 + 2 + 2 * 8
"""Memory of a copied row in addition to its words."""

Lines = NDArray[np.uint64]
NO_LINES = np.empty(0, np.uint64)


class SnapshotRows(NamedTuple):
    """Rows of a snapshot, those of some partitions, ordered by key, then table number."""

    keys: Keys
    tables: Tables
    last_used: NDArray[np.uint32]
    uses: NDArray[np.uint32]
    """As in the index, 0 if it does not have them."""
    values: Floats
    """float32 of any size: all embeddings, then the values of each state of the optimizer, then unused memory."""
    first_line: int
    """Number of the first of these lines, counted from the server's own first one."""
    lines: Lines
    """uint64[8 * lines]: the sketch of these partitions, empty without a sketch or without counts in it."""

    def parts(self, group: GroupSpec) -> dict[str, Floats]:
        """Return the embedding and each optimizer state by name, float32[n, columns], without a copy."""
        parts, at = {}, 0
        for name, columns in group.vectors.items():
            parts[name] = self.values[at : at + self.keys.size * columns].reshape(-1, columns)
            at += parts[name].size
        return parts


def empty_save_area(partitions: int = 0, rows: int = 0, cells: int = 0, width: int = 0) -> OldRows:
    """Return memory for old rows, all of it free; without arguments that of a store without a snapshot."""
    return OldRows(
        saved=zeros(rows, np.uint8),
        keys=zeros(cells, np.uint64),
        last_used=zeros(cells, np.uint32),
        uses=zeros(cells, np.uint32),
        tables=zeros(cells, np.uint16),
        words=zeros(cells * width, np.float32),
        # The lowest cells are taken first and again, so that no more memory is used than needed.
        free=np.arange(cells - 1, -1, -1, dtype=np.int64),
        counts=np.array([cells, rows, 0]),
        heads=np.full(partitions, old_rows.NONE, np.int64),
        following=zeros(cells, np.int64),
    )


def _save_area_of(store: RowStore, cells: int) -> OldRows:
    """Return the memory of a store's last snapshot, or new memory if there is none or it is too small."""
    # Taking new memory from the system takes longer than copying rows into it.
    left, store.spare_save_area = store.spare_save_area, None
    if left is not None and left.saved.size >= store.used and left.keys.size >= cells:
        return left
    rows, cells = store.used + store.used // 8, cells + cells // 8
    return empty_save_area(len(store.partitions), rows, cells, store.group.width)


def _emptied(area: OldRows, rows: int, cells: int, since: int) -> OldRows:
    """Return memory that was used before, all of it free, for so many rows in use and copies."""
    area.saved[:rows] = 0
    area.heads[:] = old_rows.NONE
    free = np.arange(cells - 1, -1, -1, dtype=np.int64)
    return area._replace(saved=area.saved[:rows], free=free, counts=np.array([cells, rows, since]))


NOTHING = empty_save_area()


class StoreSnapshot:
    """The snapshot of one row store."""

    def __init__(self, store: RowStore, since: int | None = None, cells: int | None = None) -> None:
        """Begin a snapshot of all rows with the sketch, or of the rows last used in step `since` or later.

        `cells` is the number of rows that can be copied before their turn; the constants give its default.
        """
        self._store = store
        self._states = np.array(list(store.group.optimizer.states(store.group.dim).values()), np.int64)
        self._listed = _listing(0)
        self._starts = np.empty(2, np.int64)
        self._given_back: deque[Floats] = deque()
        nbytes = store.group.width * 4 + ENTRY_BYTES
        if cells is None:
            cells = min(store.used, max(int(store.used * COPIED_FRACTION), COPIED_BYTES // nbytes))
        self._save_area = _save_area_of(store, cells)
        self.old = _emptied(self._save_area, store.used, cells, since or 0)
        self._sketch: Lines = NO_LINES
        if since is None and store.has_frequencies:
            self._sketch = store.index.sketch.copy()
        windows = max(1, (store.used * nbytes + self._sketch.nbytes) // PORTION_BYTES)
        windows = min(windows, len(store.partitions))
        self._edges = [len(store.partitions) * edge // windows for edge in range(windows + 1)] if windows else [0]
        self.over = len(self._edges) == 1

    def next_portion(self) -> SnapshotRows:
        """Copy the rows and the sketch of the next partitions; set `over` with the last of them."""
        store = self._store
        first, last = self._edges[:2]
        rows = int(store.index.fill[first:last].sum())
        if rows >= self._listed.keys.size:
            self._listed = _listing(rows + rows // 8 + 1)
            self._starts = np.empty(self._listed.keys.size + 2, np.int64)
        count = old_rows.list_rows(store.index, self.old, first, last, self._listed)
        ordered = _listing(count)
        old_rows.order_rows(self._listed, count, ordered, self._starts[: count + 2])
        values = self._memory(count * (store.group.dim + int(self._states.sum())))
        old_rows.copy_rows(store.rows, self.old, ordered.sources, self._states, values)
        words = store.group.sketch_lines * int(WORDS)
        lines = self._sketch[first * words : last * words].copy()
        del self._edges[0]
        if len(self._edges) == 1:
            self.drop()
        first_line = first * store.group.sketch_lines
        return SnapshotRows(ordered.keys, ordered.tables, ordered.last_used, ordered.uses, values, first_line, lines)

    def drop(self) -> None:
        """Drop the remaining rows, and leave the memory to the store's next snapshot."""
        if not self.over:
            self._store.spare_save_area = self._save_area
        self.over, self.old = True, NOTHING
        self._sketch = NO_LINES

    def _memory(self, size: int) -> Floats:
        """Return memory for values, of an earlier portion if possible: new memory costs as much as the copying."""
        with suppress(IndexError):
            if (values := self._given_back.popleft()).size >= size:
                return values
        return np.empty(size + size // 8, np.float32)

    def give_back(self, portion: SnapshotRows) -> None:
        """Reuse the memory of a portion; another thread may call this."""
        self._given_back.append(portion.values)

    @property
    def is_short(self) -> bool:
        """True if less than half of the memory for changed rows is left, and more rows may change than fit."""
        free, unsaved, _ = self.old.counts
        return bool(free < min(unsaved, self.old.free.size // 2))

    def has_space(self, keys: Keys, tables: Tables) -> bool:
        """Return whether all rows that a look-up of the keys may change or evict can be copied first."""
        free, unsaved, _ = self.old.counts
        return bool(
            min(keys.size, unsaved) <= free
            or sum(old_rows.count_changing(self._store.index, self.old, keys, tables)) <= free
        )

    def copy_before_change(self, keys: Keys, tables: Tables, evicts: bool, make_space: Callable[[], None]) -> None:
        """Copy the rows of keys before they change.

        With `evicts`, for a look-up, also ensure space for rows that new keys evict. While there is no space, call
        `make_space`, which must take a portion.
        """
        store, at = self._store, 0
        while True:
            at = old_rows.copy_before_write(store.index, store.rows, self.old, keys, tables, at)
            if at == keys.size:
                break
            make_space()
        while evicts and not self.has_space(keys, tables):
            make_space()


def _listing(size: int) -> Listed:
    return Listed(
        np.empty(size, np.uint64), np.empty(size, np.uint16), np.empty(size, np.uint32), np.empty(size, np.uint32),
        np.empty(size, np.int64),
    )  # fmt: skip


NONE_LEFT: LeftKeys = np.empty(0, np.uint64), np.empty(0, np.uint16)


class ShardSnapshot:
    """The snapshots of all row stores of a shard, begun at the same moment and taken one after the other."""

    def __init__(
        self, stores: Sequence[RowStore], look_ups: Sequence[int], cells: int | None = None, since: int | None = None
    ) -> None:
        """Begin it; `look_ups` are the numbers of each group's look-ups so far.

        `cells` and `since` are as in `StoreSnapshot`. With `since`, keys that have left since the last such snapshot
        are in `left`; with 0, the snapshot has all rows, and none have to be named.
        """
        left = [] if since is None else [store.take_left() for store in stores]
        self.left = left if since else [NONE_LEFT for _ in left]
        """The keys that have left each store."""
        self._snapshots = [StoreSnapshot(store, since, cells) for store in stores]
        self.cold: list[Sequence[CutSegment]] = [() if store.cold is None else store.cold.cut() for store in stores]
        """The rows of each store that are not in memory."""
        self._look_ups = tuple(look_ups)
        self.make_space: Callable[[], None] = self._refuse
        """Called when a row must be copied and there is no space; takes a portion, or raises."""
        self.pauses = 0
        """Number of such calls."""

    def _refuse(self) -> None:
        raise RuntimeError("internal error: a row of the snapshot changes, but no reader takes the rows before it")

    @property
    def over(self) -> bool:
        """True if all rows are taken."""
        return all(snapshot.over for snapshot in self._snapshots)

    def next_portion(self) -> tuple[int, SnapshotRows, bool]:
        """Copy the next rows; return their group, the rows, and whether they are the last of the group."""
        group = next(number for number, snapshot in enumerate(self._snapshots) if not snapshot.over)
        portion = self._snapshots[group].next_portion()
        return group, portion, self._snapshots[group].over

    def give_back(self, group: int, portion: SnapshotRows) -> None:
        """Reuse the memory of a portion; another thread may call this."""
        self._snapshots[group].give_back(portion)

    def drop(self) -> None:
        """Drop the remaining rows, because they cannot be written: from now on none is copied."""
        self.cold = []
        for snapshot in self._snapshots:
            snapshot.drop()

    @property
    def is_short(self) -> bool:
        """True if rows of some store must be taken soon, since the space for changed rows runs out."""
        return any(snapshot.is_short for snapshot in self._snapshots)

    def has_space(self, group: int, keys: Keys, tables: Tables) -> bool:
        """Return whether a look-up of the keys need not wait until more portions are taken."""
        return self._snapshots[group].has_space(keys, tables)

    def before_look_up(self, group: int, keys: Keys, tables: Tables) -> OldRows:
        """Copy the rows of keys that are looked up; return memory for the rows that new keys evict."""
        self._copy(group, keys, tables, evicts=True)
        return self._snapshots[group].old

    def before_update(self, group: int, keys: Keys, tables: Tables, looked_up: int | None) -> None:
        """Copy the rows of keys that are updated; `looked_up` is the number of the look-up that found the same keys."""
        # A look-up after the snapshot began has copied the rows that it found; keys that it did not find have no row in
        # it.
        if looked_up is None or looked_up <= self._look_ups[group]:
            self._copy(group, keys, tables, evicts=False)

    def _copy(self, group: int, keys: Keys, tables: Tables, evicts: bool) -> None:
        def make_space() -> None:
            self.pauses += 1
            self.make_space()

        self._snapshots[group].copy_before_change(keys, tables, evicts, make_space)
