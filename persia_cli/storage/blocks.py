"""Memory for direct disk I/O, past the page cache."""

import weakref
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np
from numpy.typing import NDArray

PAGE, HUGE_PAGE = 4096, 2**21
"""Bytes: the size of a request to the disk is a multiple of the first, its memory is in pages of the second."""

Block = NDArray[np.uint8]


def new_block(nbytes: int) -> Block:
    """Return memory that begins at a page, a huge one if the system has such.

    The system passes huge pages to the disk in a few pieces, and small ones in thousands.
    """
    pages = mmap(-1, nbytes + HUGE_PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    with suppress(OSError):
        pages.madvise(MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    return whole[-whole.ctypes.data % HUGE_PAGE :][:nbytes]


class BlockPool:
    """Blocks that are reused once they are unreferenced: new memory costs as much as reading into it."""

    def __init__(self) -> None:
        self._free: list[Block] = []

    def take(self, nbytes: int) -> memoryview:
        """Return a block of at least so many bytes; it is free again when nothing refers to any part of it."""
        while self._free:
            block = self._free.pop()
            if block.size >= nbytes:
                break
        else:
            block = new_block(-(-nbytes // HUGE_PAGE) * HUGE_PAGE)
        lent = block[:]
        weakref.finalize(lent, self._free.append, block).atexit = False
        return lent.data
