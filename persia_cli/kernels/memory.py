"""Memory of embedding servers: on cache lines, in huge pages, and taken from the machine only where it is written."""

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
HUGE_PAGE = 2 << 20


def zeros(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """`size` zeros from a cache line on; large ones in huge pages, where the system grants them.

    Raises MemoryError if the machine cannot promise so much.
    """
    nbytes = max(1, size * np.dtype(dtype).itemsize)
    if nbytes < HUGE_PAGE:
        block = np.zeros(nbytes + CACHE_LINE, np.uint8)
        return _from(block, CACHE_LINE, size, dtype)
    try:
        pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes:,} bytes") from error
    pages.madvise(mmap.MADV_HUGEPAGE)
    return _from(np.frombuffer(pages, np.uint8), HUGE_PAGE, size, dtype)


def _from(block: NDArray[np.uint8], boundary: int, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """The part of a block that begins on a boundary."""
    start = -block.ctypes.data % boundary
    return block[start : start + size * np.dtype(dtype).itemsize].view(dtype)
