"""Memory of embedding servers: aligned to cache lines, in huge pages, and taken from the system when written."""

import contextlib
import ctypes
import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
HUGE_PAGE = 2 << 20
COLLAPSE = 25
"""Advice of madvise (Linux 6.1): move present memory into huge pages."""


class Empty(Protocol):
    """A function that returns an uninitialized array, as numpy.empty does."""

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]: ...


def zeros(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return `size` zeros, aligned to a cache line; large arrays lie in huge pages if the system has them.

    Raises MemoryError if the system cannot reserve the memory.
    """
    nbytes = max(1, size * np.dtype(dtype).itemsize)
    if nbytes < HUGE_PAGE:
        block = np.zeros(nbytes + CACHE_LINE, np.uint8)
        return _from(block, CACHE_LINE, size, dtype)
    try:
        pages = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes:,} bytes") from error
    with contextlib.suppress(OSError):  # the system has no huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return _from(np.frombuffer(pages, np.uint8), HUGE_PAGE, size, dtype)


def retain_freed_memory() -> None:
    """Make this process retain the memory that it frees, for its next arrays."""
    # By default glibc returns large blocks to the system at once. Then the system would clear new pages for every
    # batch, which takes longer than the work on them. Other C libraries have no such setting.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 1 << 30)


def _from(block: NDArray[np.uint8], boundary: int, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array in a block, from the first multiple of `boundary` on."""
    start = -block.ctypes.data % boundary
    return block[start : start + size * np.dtype(dtype).itemsize].view(dtype)
