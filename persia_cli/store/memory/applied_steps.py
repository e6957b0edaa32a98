"""The window of applied steps of each rank: it identifies repeated updates, and may lie in a memory file."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import WireError

LIMIT = 4096
"""Steps that a window may be ahead of its watermark."""
SPAN = 2 * LIMIT
"""Bits of a rank's map: so many that a stale bit cannot mean another step."""
WORD = 64


class AppliedSteps:
    """The watermark of each rank, and a bit for each step above it that is applied, or only looked up.

    `array` returns memory that is zero at first; no step is applied then.
    """

    def __init__(self, array: Callable[[int, DTypeLike], NDArray[Any]], ranks: int) -> None:
        self._next = array(ranks, np.int64)
        """The step after the watermark of each rank."""
        self._applied = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)
        self._looked_up = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)

    def begin(self, last_step: int) -> None:
        """Mark all steps up to `last_step` as applied, and no others."""
        self._next[:] = last_step + 1
        self._applied[:] = self._looked_up[:] = 0

    def watermark(self, rank: int) -> int:
        """Return the step up to which all updates of a rank are applied; -1 before the first."""
        return int(self._next[rank]) - 1

    @property
    def lowest(self) -> int:
        """The last step that is applied for every rank."""
        return int(self._next.min()) - 1

    def check(self, rank: int, step: int) -> None:
        """Raise WireError for a step so far ahead of the watermark that the rank cannot have permits for it."""
        if step > (watermark := self.watermark(rank)) + LIMIT:
            raise WireError(f"step {step} is more than {LIMIT} steps ahead of the last finished step {watermark}")

    def is_applied(self, rank: int, step: int) -> bool:
        """Return whether a step of a rank is applied; it must have passed `check`."""
        return bool(step < self._next[rank]) or _is_set(self._applied[rank], step)

    def mark(self, rank: int, step: int) -> None:
        """Mark a step of a rank as applied. A repeat, also after a part of it, changes nothing."""
        if step >= self._next[rank]:
            _set(self._applied[rank], step, True)
        _set(self._looked_up[rank], step, False)
        self._advance(rank)

    def mark_looked_up(self, rank: int, step: int) -> None:
        """Mark a step of a rank as looked up."""
        if step >= self._next[rank]:
            _set(self._looked_up[rank], step, True)

    def is_looked_up(self, rank: int, step: int) -> bool:
        """Return whether a step above the watermark has been looked up and not applied."""
        return bool(step >= self._next[rank]) and _is_set(self._looked_up[rank], step)

    def repair(self) -> None:
        """Complete the change of an earlier process, which raised the watermark before it cleared the step's bit."""
        for rank, step in enumerate(self._next.tolist()):
            if step > 0:
                _set(self._applied[rank], step - 1, False)
            self._advance(rank)

    def _advance(self, rank: int) -> None:
        bits = self._applied[rank]
        while _is_set(bits, int(self._next[rank])):
            self._next[rank] += 1
            _set(bits, int(self._next[rank]) - 1, False)


def _is_set(bits: NDArray[np.uint64], step: int) -> bool:
    word, bit = divmod(step % SPAN, WORD)
    return bool(int(bits[word]) >> bit & 1)


def _set(bits: NDArray[np.uint64], step: int, value: bool) -> None:
    word, bit = divmod(step % SPAN, WORD)
    bits[word] = int(bits[word]) | 1 << bit if value else int(bits[word]) & ~(1 << bit)
