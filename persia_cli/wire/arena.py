"""The allocator of a segment: its blocks become arrays, and are free again when the last array on them is gone."""

import math
import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.wire.segment import DATA_START, Segment

GRAIN = 64
"""Blocks begin on a cache line."""
LARGEST_RATIO = 2
"""A free block of up to so many times the size needed is reused before memory that has not been used so far."""


class Arena:
    """The memory of one segment; any thread may ask for arrays and release them.

    Of the free blocks of a size, the one released last is reused first, since its memory is still in a cache.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._lock = threading.Lock()
        self._end = DATA_START
        self._free: dict[int, list[int]] = {}
        # Arrays are freed in any thread, even while this thread is within `empty`, since the garbage collector may run
        # there. So `__del__` must not take the lock. It only appends to this deque, which is atomic, and `empty`, which
        # holds the lock, collects the blocks.
        self._returned: deque[tuple[int, int]] = deque()
        self._merged = True
        """True if no two free blocks are adjacent."""

    @property
    def used(self) -> int:
        """Bytes up to the end of the last block: an upper bound of the memory that the arena takes."""
        return self._end

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any] | None:
        """Return an uninitialized array of shape and dtype, None if there is no room for it."""
        size = block_size(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            while self._returned:
                returned, offset = self._returned.popleft()
                self._free.setdefault(returned, []).append(offset)
                self._merged = False
            taken = self._take(size)
        if taken is None:
            return None
        return self.segment.array(taken[1], shape, dtype, _BlockOwner(self._returned, taken))

    def _take(self, size: int) -> tuple[int, int] | None:
        """Return size and offset of a block for an array; merges free blocks if none is large enough."""
        taken = self._find(size)
        if taken is None and not self._merged:
            self._merge()
            taken = self._find(size)
        return taken

    def _find(self, size: int) -> tuple[int, int] | None:
        if self._free.get(size):
            return size, self._free[size].pop()
        larger = min((each for each, offsets in self._free.items() if each > size and offsets), default=None)
        if larger is not None and larger <= LARGEST_RATIO * size:
            return larger, self._free[larger].pop()
        if self._end + size <= self.segment.nbytes:
            self._end += size
            return size, self._end - size
        if larger is None:
            return None
        offset = self._free[larger].pop()
        self._free.setdefault(larger - size, []).append(offset + size)
        return size, offset

    def _merge(self) -> None:
        """Merge free blocks that are adjacent."""
        merged: list[tuple[int, int]] = []
        for offset, size in sorted((offset, size) for size, offsets in self._free.items() for offset in offsets):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        if merged and sum(merged[-1]) == self._end:
            self._end = merged.pop()[0]
        self._free = {}
        for offset, size in merged:
            self._free.setdefault(size, []).append(offset)
        self._merged = True


class _BlockOwner:
    """An object that the arrays on a block keep alive; it frees the block in the end."""

    __slots__ = ("_returned", "_taken")

    def __init__(self, returned: deque[tuple[int, int]], taken: tuple[int, int]) -> None:
        self._returned = returned
        self._taken = taken

    def __del__(self) -> None:
        self._returned.append(self._taken)


def block_size(nbytes: int) -> int:
    """Return the block size for so many bytes: one of eight sizes between two powers of two, so blocks are reused."""
    step = max(GRAIN, 1 << max(0, nbytes.bit_length() - 4))
    return max(1, -(-nbytes // step)) * step
