"""The windows of applied steps (`control.watermarks.Window`) in a memory file."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

SPAN = 8192
"""Bits of a rank's map: twice the steps that a window may be ahead, so that a bit left behind means no other step."""
WORD = 64


class AppliedSteps:
    """The watermark of each rank, and a bit for each step above it that is applied, or only looked up.

    `array` returns arrays of the memory file.
    """

    def __init__(self, array: Callable[[int, DTypeLike], NDArray[Any]], ranks: int) -> None:
        self._watermarks = array(ranks, np.int64)
        self._applied = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)
        self._looked_up = array(ranks * SPAN // WORD, np.uint64).reshape(ranks, -1)

    def begin(self, last_step: int) -> None:
        """Say that all steps up to `last_step` are applied, and no others."""
        self._watermarks[:] = last_step
        self._applied[:] = self._looked_up[:] = 0

    def mark(self, rank: int, step: int) -> None:
        """Mark a step of a rank applied. To do it again, or after a part of it, changes nothing."""
        if step > self._watermarks[rank]:
            _set(self._applied[rank], step, True)
        _set(self._looked_up[rank], step, False)
        self._advance(rank)

    def mark_looked_up(self, rank: int, step: int) -> None:
        """Mark a step of a rank looked up."""
        if step > self._watermarks[rank]:
            _set(self._looked_up[rank], step, True)

    def is_looked_up(self, rank: int, step: int) -> bool:
        """Return whether a step above the watermark has been looked up and not applied."""
        return step > self._watermarks[rank] and _is_set(self._looked_up[rank], step)

    def repair(self) -> None:
        """Finish what an earlier process had begun: it raised the watermark before it cleared the bit of that step."""
        for rank, watermark in enumerate(self._watermarks.tolist()):
            if watermark >= 0:
                _set(self._applied[rank], watermark, False)
            self._advance(rank)

    def windows(self) -> list[tuple[int, set[int]]]:
        """Return each rank's watermark and the applied steps above it."""
        steps = [np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")) for bits in self._applied]
        return [
            (first, {first + 1 + (step - first - 1) % SPAN for step in above.tolist()})
            for first, above in zip(self._watermarks.tolist(), steps, strict=True)
        ]

    def _advance(self, rank: int) -> None:
        bits = self._applied[rank]
        while _is_set(bits, int(self._watermarks[rank]) + 1):
            self._watermarks[rank] += 1
            _set(bits, int(self._watermarks[rank]), False)


def _is_set(bits: NDArray[np.uint64], step: int) -> bool:
    word, bit = divmod(step % SPAN, WORD)
    return bool(int(bits[word]) >> bit & 1)


def _set(bits: NDArray[np.uint64], step: int, value: bool) -> None:
    word, bit = divmod(step % SPAN, WORD)
    bits[word] = int(bits[word]) | 1 << bit if value else int(bits[word]) & ~(1 << bit)
