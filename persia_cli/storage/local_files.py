"""Local files that are written and read past the page cache."""

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

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

    def borrow(self, nbytes: int) -> memoryview:
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


START_BYTES = 2**23
"""Bytes of a local file after which the disk begins to write them, without O_DIRECT."""
MIN_SHARED_BYTES, BEYOND_BYTES = 2**20, 2**14
"""Minimum size of a read: small parts mostly come before and after large ones."""


def open_directly(path: str, flags: int) -> int:
    """Open a file past the page cache (O_DIRECT), or normally if the file system does not support it.

    The disk then reads and writes the memory of the process directly. Copying through the page cache costs a processor
    as much as all other work on the rows of a checkpoint or more, and evicts other files from memory.
    """
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def _use_page_cache(file: Any, error: OSError) -> None:
    """Make a file use the page cache from now on; raises the error if it does so already, or if it is another error.

    O_DIRECT needs memory, size and position in the file that are multiples of the disk's block.
    """
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
        raise error
    fcntl.fcntl(file, fcntl.F_SETFL, flags & ~os.O_DIRECT)


class LocalSink:
    """A local file, opened by `open_directly`; parts that O_DIRECT refuses, such as its end, are written normally."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._flushed, self._written = sink, 0, 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        while rest.nbytes:
            written = self._write(rest)
            self._written += written
            rest = rest[written:]
        if self._written - self._flushed >= START_BYTES:
            # Advice that none of this is needed soon makes Linux write it, without waiting for that.
            os.posix_fadvise(self._sink.fileno(), self._flushed, self._written - self._flushed, os.POSIX_FADV_DONTNEED)
            self._flushed = self._written
        return memoryview(data).nbytes

    def _write(self, data: memoryview) -> int:
        """Write some of the content, directly if possible; returns the number of bytes."""
        try:
            written: int = self._sink.write(data)
        except OSError as error:
            _use_page_cache(self._sink, error)
            written = self._sink.write(data)
        return written


class LocalSource:
    """A local file, opened by `open_directly`, that is read from its begin to its end.

    `read` returns memory that is reused for the next part once it is unreferenced.
    """

    def __init__(self, source: Any) -> None:
        self._source, self._pool = source, BlockPool()
        self._window, self._begin, self._position = memoryview(b""), 0, 0
        self._nbytes = os.fstat(source.fileno()).st_size

    def read(self, size: int = -1) -> memoryview:
        """Return so many bytes, fewer only at the end of the file; the rest of the file if `size` is negative."""
        left = max(0, self._nbytes - self._position)
        size = left if size < 0 else min(size, left)
        if self._position + size > self._begin + len(self._window):
            self._fill(size)
        start = self._position - self._begin
        content = self._window[start : start + size]
        self._position += len(content)
        return content

    def _fill(self, size: int) -> None:
        """Read so many bytes from the present position on."""
        self._begin = self._position // PAGE * PAGE
        end = self._position + max(size + BEYOND_BYTES, MIN_SHARED_BYTES)
        nbytes = -(-(end - self._begin) // PAGE) * PAGE
        self._window, filled = self._pool.borrow(nbytes)[:nbytes], 0
        while filled < min(nbytes, self._nbytes - self._begin):
            got = self._read_at(self._begin + filled, self._window[filled:])
            if not got:
                break
            filled += got
        self._window = self._window[:filled]

    def _read_at(self, position: int, buffer: memoryview) -> int:
        """Read at a position, directly if possible; returns the number of bytes."""
        try:
            return os.preadv(self._source.fileno(), [buffer], position)
        except OSError as error:
            _use_page_cache(self._source, error)
            return os.preadv(self._source.fileno(), [buffer], position)
