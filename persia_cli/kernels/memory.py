"""Memory of embedding servers: aligned to cache lines, in huge pages, and taken from the system when it is written."""

import contextlib
import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

CACHE_LINE = 64
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
HUGE_PAGE, SMALL_PAGE = 2 << 20, 4096
HUGE, NO_HUGE, PRESENT, COLLAPSE = 14, 15, 23, 25
"""Advice of madvise: use huge pages, use none, take pages now (Linux 5.14), put what is there into huge ones (6.1)."""
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


Beside = Callable[[Iterator[None]], None]
"""What has work done, perhaps on another thread, which need not end; it is done in short pieces, one at a time."""


def at_once(work: Iterator[None]) -> None:
    """Do it now."""
    deque(work, 0)


class ScatteredPages:
    """The pages of arrays that are written at random places, such as an index: small at first, and huge later on.

    In huge pages, the first few thousand writes would clear all memory of the arrays, and take it from the system. So
    these are small as long as writes are few. Then all are put into huge pages, one after the other, which may happen
    while the arrays are in use. They are of `zeros`; where the system cannot change pages in use, all are huge from the
    start.
    """

    def __init__(self, *arrays: NDArray[Any], beside: Beside) -> None:
        whole = [_huge_pages_of(array) for array in arrays]
        self.can_change = _advised(0, 0, COLLAPSE)
        """False if the system cannot put pages that are in use into huge ones."""
        self._small = [pages for pages in whole if pages.size] if self.can_change else []
        self._beside = beside
        self._pages = sum(pages.size for pages in self._small) // SMALL_PAGE
        self._few = min(FEW, self._pages // DENSE)
        self._writes = 0
        for pages in self._small:
            _advise(pages, NO_HUGE)

    def expect(self, most: int, more: bool = False) -> None:
        """Prepare for up to `most` writes to new places: if the very first are many, pages are huge as they come.

        Many are those that reach about every page; or, if `more` such writes follow at once, as of a model that is
        loaded, those that `note` takes for many.
        """
        if self._small and not self._writes and most >= (self._few if more else self._pages):
            for pages in self._small:
                _advise(pages, HUGE)
            self._small = []

    def note(self, writes: int) -> None:
        """Take note of writes to new places."""
        if not self._small:
            return
        self._writes += writes
        if self._writes >= self._few:
            self._beside(_make_huge(self._small))
            self._small = []


def _make_huge(arrays: list[NDArray[np.uint8]]) -> Iterator[None]:
    """Put arrays into huge pages, one at a time, while others read and write them, which wait for one page at most."""
    for pages in arrays:
        _advise(pages, HUGE)
        for start in range(0, pages.size, HUGE_PAGE):
            # The system refuses where no small page is present.
            _advise(pages[start : start + SMALL_PAGE], PRESENT)
            _advise(pages[start : start + HUGE_PAGE], COLLAPSE)
            yield


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
