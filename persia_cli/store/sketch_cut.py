"""The sketch of a row store as it was when a cut began, taken portion by portion with the rows of its partitions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import old_lines
from persia_cli.kernels.memory import zeros
from persia_cli.kernels.old_lines import OldLines
from persia_cli.kernels.sightings import WORDS
from persia_cli.store.row_store import Keys, RowStore, Tables

Lines = NDArray[np.uint64]
WIDTH = int(WORDS)
KEPT_FRACTION = 0.04
"""Largest fraction of the lines that are kept as they were at the same time."""
KEPT_LINES = 2**14
"""Lines that may be kept whatever the fraction, 1 MiB: small sketches are kept whole."""


class SketchCut:
    """The lines of one store's sketch at the cut; without a sketch it has none."""

    def __init__(self, store: RowStore, places: int | None = None) -> None:
        """Begin it; `places` is the number of lines that can be kept, by default as many as the constants say."""
        self._index = store.index
        lines = store.index.sketch.size // WIDTH if store.has_sightings else 0
        self.nbytes = lines * WIDTH * 8
        """Size of the lines; 0 if nothing was counted before the cut, so that there is nothing to copy."""
        places = min(lines, max(int(lines * KEPT_FRACTION), KEPT_LINES) if places is None else places)
        self._old = OldLines(
            settled=zeros(lines, np.uint8),
            words=zeros(places * WIDTH, np.uint64),
            lines=zeros(places, np.int64),
            free=np.arange(places - 1, -1, -1, dtype=np.int64),
            counts=np.array([places, lines]),
            heads=np.full(len(store.partitions), old_lines.NONE, np.int64),
            following=zeros(places, np.int64),
        )

    def take(self, first: int, last: int) -> Lines:
        """Return a copy of the lines of own partitions [first, last), counted from 0: uint64[8 * lines].

        It is empty if nothing was counted before the cut.
        """
        if not self.nbytes:
            return np.empty(0, np.uint64)
        begin, end = first * int(self._index.lines), last * int(self._index.lines)
        words, settled = self._index.sketch[begin * WIDTH : end * WIDTH].copy(), self._old.settled[begin:end]
        self._old.counts[1] -= settled.size - np.count_nonzero(settled)
        settled[:] = 1
        old_lines.take_kept_lines(self._index, self._old, first, last, words)
        return words

    @property
    def is_short(self) -> bool:
        """True if less than half of the room for lines that change is left, and more lines may change than fit."""
        free, unsettled = self._old.counts
        return bool(free < min(unsettled, self._old.free.size // 2))

    def has_room(self, ids: int) -> bool:
        """Return whether the lines of so many ids can be kept, should none of them have a row."""
        free, unsettled = self._old.counts
        return bool(min(ids, unsettled) <= free)

    def drop(self) -> None:
        """Give up what is left of the lines: from now on none is kept."""
        self._old.counts[1] = 0

    def keep(self, keys: Keys, tables: Tables, write_on: Callable[[], None]) -> None:
        """Keep the lines of those keys that have no row; calls `write_on` as often as there is no room."""
        at = 0
        while self._old.counts[1]:
            at = old_lines.keep_lines(self._index, self._old, keys, tables, at)
            if at == keys.size:
                break
            write_on()
