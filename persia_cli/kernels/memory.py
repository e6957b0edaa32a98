"""Memory of embedding servers: aligned to cache lines, in huge pages, and taken from the system when it is written."""

import contextlib
import ctypes
import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
HUGE_PAGE, SMALL_PAGE = 2 << 20, 4096
HUGE, NO_HUGE, COLLAPSE = 14, 15, 25
"""Advice of madvise: to use huge pages, not to, and to put what is there into huge pages (Linux 6.1)."""
COLLAPSED_AT_ONCE = 32 << 20
"""Bytes of a scattered array that are put into huge pages at a time: each call waits for all processors once."""
DENSE, FEW = 4, 1 << 16
"""Writes to a scattered array are few up to one for each so many small pages, and up to so many in all."""


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


class ScatteredPages:
    """The pages of arrays that are written at random places, such as an index: small at first, and huge later on.

    In huge pages, the first few thousand writes would clear all memory of the arrays, and take it from the system. So
    these are small as long as writes are few. Then all is put into huge pages, a portion at a time. The arrays are of
    `zeros`; where the system cannot change pages that are in use, they have huge ones from the start.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        whole = [_huge_pages_of(array) for array in arrays]
        self.can_change = _advised(0, 0, COLLAPSE)
        """False if the system cannot put pages that are in use into huge ones."""
        self._left = [pages for pages in whole if pages.size] if self.can_change else []
        self._few = min(FEW, sum(pages.size for pages in self._left) // SMALL_PAGE // DENSE)
        self._writes = 0
        for pages in self._left:
            _advise(pages, NO_HUGE)

    def note(self, writes: int) -> None:
        """Take note of writes to new places, before or after they are done."""
        if not self._left:
            return
        before, self._writes = self._writes, self._writes + writes
        if self._writes < self._few:
            return
        if before < self._few:
            for pages in self._left:
                _advise(pages, HUGE)
        pages = self._left[0]
        part, rest = pages[:COLLAPSED_AT_ONCE], pages[COLLAPSED_AT_ONCE:]
        # The system refuses where no page is present.
        part[::HUGE_PAGE] = part[::HUGE_PAGE]
        _advise(part, COLLAPSE)
        self._left[:1] = [rest] if rest.size else []


def _huge_pages_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the part of an array that whole huge pages cover."""
    octets = array.view(np.uint8)
    start = -octets.ctypes.data % HUGE_PAGE
    return octets[start : start + max(0, octets.size - start) // HUGE_PAGE * HUGE_PAGE]


def _advise(pages: NDArray[np.uint8], advice: int) -> None:
    """Advise the system on pages; what it does not heed costs time alone."""
    _advised(pages.ctypes.data, pages.size, advice)


def _advised(address: int, nbytes: int, advice: int) -> bool:
    """Call madvise; return whether the system did as advised."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(address, nbytes, advice) == 0)


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees, for its next arrays.

    By default glibc returns large blocks to the system at once. Then the system would clear new pages for every batch,
    which takes longer than the work on them. Does nothing if the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 32 << 20)
        mallopt(TRIM_THRESHOLD, 1 << 30)


def _from(block: NDArray[np.uint8], boundary: int, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array in a block, from the first multiple of `boundary` on."""
    start = -block.ctypes.data % boundary
    return block[start : start + size * np.dtype(dtype).itemsize].view(dtype)
