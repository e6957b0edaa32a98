"""What look-ups of training were answered: whoever asks again gets the same, whatever others have asked since."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.store.inbox import ARRAY_BYTES

MOST_NEW = ARRAY_BYTES // 16
"""Address space, in keys, for the new keys of a look-up: the inbox has room for no more."""
BARE = np.uint32(1 << 31)
"""Bit of a position in the file that says that the key got no row."""


class NewKeys(NamedTuple):
    """The keys of one feature group that had no row before a look-up, as ascending positions among its keys."""

    positions: NDArray[np.uint32]
    bare: NDArray[np.uint32]
    """Those of `positions` that got no row by it either: they were answered with zeros."""


Answer = tuple[NDArray[np.uint8], NewKeys]
"""Encoded embeddings of the keys of a feature group, zeros for those without a row, and the new keys."""


def as_before(answers: list[Answer], before: Sequence[NewKeys]) -> list[Answer]:
    """Return the answers to a look-up that is repeated as they were, given the new keys of the first time.

    Keys that got a row then are new still, and keys that got none read as zeros, though the look-up of another rank may
    have given them a row since. Embeddings are changed in place.
    """
    for (rows, _), new in zip(answers, before, strict=True):
        rows[new.bare] = 0
    return [(rows, new) for (rows, _), new in zip(answers, before, strict=True)]


class LastAnswers:
    """The new keys of each rank's last look-up of training, in a memory file; `array` returns arrays of that."""

    def __init__(self, array: Callable[[int, DTypeLike], NDArray[Any]], ranks: int, groups: int) -> None:
        self._next = array(ranks, np.int64)
        """The step after that of the look-up; 0 if there is none, or while it is written."""
        self._sizes = array(ranks * groups, np.int64).reshape(ranks, groups)
        self.positions = array(ranks * MOST_NEW, np.uint32).reshape(ranks, MOST_NEW)

    def keep(self, rank: int, step: int, groups: Sequence[NewKeys]) -> None:
        """Keep the new keys of a look-up in place of those of the rank's last one."""
        self._next[rank] = end = 0
        for number, new in enumerate(groups):
            self._sizes[rank, number] = new.positions.size
            own = self.positions[rank, end : end + new.positions.size]
            own[...] = new.positions
            own[np.searchsorted(new.positions, new.bare)] |= BARE
            end += own.size
        self._next[rank] = step + 1

    def last(self, rank: int) -> tuple[int, list[NewKeys]] | None:
        """Return the step and the new keys of the rank's last look-up, by group; None if they are not here whole."""
        step = int(self._next[rank]) - 1
        if step < 0:
            return None
        ends = np.cumsum(self._sizes[rank])
        marked = np.split(self.positions[rank, : ends[-1]].copy(), ends[:-1])
        return step, [NewKeys(each & ~BARE, each[each >= BARE] & ~BARE) for each in marked]


def address_space(ranks: int, groups: int) -> int:
    """Return the bytes of a memory file that `LastAnswers` asks for, but for alignment."""
    return ranks * (8 + 8 * groups + 4 * MOST_NEW)
