"""Memory of embedding servers: on cache lines, in huge pages, and taken from the machine only where it is written."""

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


class Empty(Protocol):
    """What makes arrays with any content, as numpy.empty does."""

    def __call__(self, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]: ...


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
    with contextlib.suppress(OSError):  # a system without huge pages refuses the wish
        pages.madvise(mmap.MADV_HUGEPAGE)
    return _from(np.frombuffer(pages, np.uint8), HUGE_PAGE, size, dtype)


def keep_freed_memory() -> None:
    """Have this process keep what it frees, for its next arrays of the size.

    glibc gives large blocks back at once; every batch would then pay for the system to clear pages anew, which takes
    longer than the work on them. Does nothing where the C library has no such choice.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 1 << 30)


def _from(block: NDArray[np.uint8], boundary: int, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """The part of a block that begins on a boundary."""
    start = -block.ctypes.data % boundary
    return block[start : start + size * np.dtype(dtype).itemsize].view(dtype)
