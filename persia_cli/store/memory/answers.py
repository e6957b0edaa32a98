"""The answers to look-ups of training: a repeat gets the same answer, even if other look-ups came in between."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

MAX_NEW_KEYS = 1 << 27
"""Maximum number of new keys of a look-up, since a message has at most 1 GiB; the file reserves address space."""
NO_ROW_BIT = np.uint32(1 << 31)
"""Bit of a position in the file that means that the key got no row."""


class NewKeys(NamedTuple):
    """The keys of one feature group that had no row before a look-up, as ascending positions among its keys."""

    positions: NDArray[np.uint32]
    rowless: NDArray[np.uint32]
    """Those of `positions` that got no row by it either: they were answered with zeros."""


Answer = tuple[NDArray[np.uint8], NewKeys]
"""Encoded embeddings of the keys of a feature group, zeros for those without a row, and the new keys."""


def answers_as_before(answers: list[Answer], before: Sequence[NewKeys]) -> list[Answer]:
    """Return the first answers to a repeated look-up, given its new keys at the first time.

    Keys that got a row then are still new, and keys that got none read as zeros, although the look-up of another rank
    may have given them a row since. Embeddings are changed in place.
    """
    for (rows, _), new in zip(answers, before, strict=True):
        rows[new.rowless] = 0
    return [(rows, new) for (rows, _), new in zip(answers, before, strict=True)]


class LastAnswers:
    """The new keys of each rank's last look-up of training, in a memory file; `array` returns arrays of that.

    Kernels write them there during the look-up.
    """

    def __init__(self, array: Callable[[int, DTypeLike], NDArray[Any]], ranks: int, groups: int) -> None:
        self._next = array(ranks, np.int64)
        """The step after that of the look-up; 0 if there is none, or while it is carried out."""
        self._sizes: NDArray[np.int64] = array(ranks * groups, np.int64).reshape(ranks, groups)
        self.positions: NDArray[np.uint32] = array(ranks * MAX_NEW_KEYS, np.uint32).reshape(ranks, MAX_NEW_KEYS)

    def begin(self, rank: int) -> None:
        """Clear the rank's last look-up: another one begins."""
        self._next[rank] = 0

    def space(self, rank: int, group: int, keys: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return memory for positions of new keys of a group, uint32[keys], and for their number, int64[1].

        Those of all groups before must be written; all groups together have at most MAX_NEW_KEYS keys.
        """
        start = int(self._sizes[rank, :group].sum())
        return self.positions[rank, start : start + keys], self._sizes[rank, group : group + 1]

    def end(self, rank: int, step: int) -> None:
        """Mark the rank's look-up of a step as done."""
        self._next[rank] = step + 1

    def new_keys(self, rank: int, group: int) -> NewKeys:
        """Return the new keys of a group of the rank's last look-up."""
        start, size = int(self._sizes[rank, :group].sum()), int(self._sizes[rank, group])
        marked = self.positions[rank, start : start + size].copy()
        return NewKeys(marked & ~NO_ROW_BIT, marked[marked >= NO_ROW_BIT] & ~NO_ROW_BIT)

    def last(self, rank: int) -> tuple[int, list[NewKeys]] | None:
        """Return the step and the new keys of the rank's last look-up, by group; None if they are incomplete."""
        step = int(self._next[rank]) - 1
        return None if step < 0 else (step, [self.new_keys(rank, group) for group in range(self._sizes.shape[1])])


def address_space(ranks: int, groups: int) -> int:
    """Return the bytes of a memory file that `LastAnswers` needs, without alignment."""
    return ranks * (8 + 8 * groups + 4 * MAX_NEW_KEYS)
