"""Local files that are written and read past the page cache."""

import errno
import fcntl
import os
from typing import Any

from persia_cli.storage.blocks import PAGE, BlockPool

START_BYTES = 2**23
"""Bytes of a local file after which the disk begins to write them, where it does not take them directly."""
MIN_SHARED_BYTES, BEYOND_BYTES = 2**20, 2**14
"""What is read at a time at least, and beyond what was asked for: small parts mostly come before and behind large."""


def open_directly(path: str, flags: int) -> int:
    """Open a file past the page cache (O_DIRECT), or as usual where the file system has no such thing.

    The disk then takes content from the memory of who writes, or puts it into that of who reads. To copy it by way of
    the page cache costs a processor as much as all else about the rows of a checkpoint or more, and drives other files
    out of memory.
    """
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def _go_on_as_usual(file: Any, error: OSError) -> None:
    """Have a file go by way of the page cache from now on; raises the error if it does so already, or if it is another.

    Memory, size and place in the file must be multiples of what the disk writes or reads at a time.
    """
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
        raise error
    fcntl.fcntl(file, fcntl.F_SETFL, flags & ~os.O_DIRECT)


class LocalSink:
    """A local file, opened by `open_directly`; what O_DIRECT does not take, such as its end, is written as usual."""

    def __init__(self, sink: Any) -> None:
        self._sink, self._begun, self._written = sink, 0, 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        while rest.nbytes:
            written = self._write(rest)
            self._written += written
            rest = rest[written:]
        if self._written - self._begun >= START_BYTES:
            # Advice that nothing of this is needed soon makes Linux write it, without waiting for that.
            os.posix_fadvise(self._sink.fileno(), self._begun, self._written - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = self._written
        return memoryview(data).nbytes

    def _write(self, data: memoryview) -> int:
        """Write some of the content, directly if it can be; returns how much."""
        try:
            written: int = self._sink.write(data)
        except OSError as error:
            _go_on_as_usual(self._sink, error)
            written = self._sink.write(data)
        return written


class LocalSource:
    """A local file, opened by `open_directly`, that is read from its begin to its end.

    What `read` returns lies in memory that is used again for the next part once nobody has it any more.
    """

    def __init__(self, source: Any) -> None:
        self._source, self._pool = source, BlockPool()
        self._window, self._begin, self._position = memoryview(b""), 0, 0
        self._nbytes = os.fstat(source.fileno()).st_size

    def read(self, size: int = -1) -> memoryview:
        """Return so many bytes, fewer only at the end of the file; all that is left if `size` is negative."""
        left = max(0, self._nbytes - self._position)
        size = left if size < 0 else min(size, left)
        if self._position + size > self._begin + len(self._window):
            self._fill(size)
        start = self._position - self._begin
        content = self._window[start : start + size]
        self._position += len(content)
        return content

    def _fill(self, size: int) -> None:
        """Read what comes next, with so many bytes from the present position on."""
        self._begin = self._position // PAGE * PAGE
        end = self._position + max(size + BEYOND_BYTES, MIN_SHARED_BYTES)
        room = -(-(end - self._begin) // PAGE) * PAGE
        self._window, filled = self._pool.take(room)[:room], 0
        while filled < min(room, self._nbytes - self._begin):
            got = self._read_at(self._begin + filled, self._window[filled:])
            if not got:
                break
            filled += got
        self._window = self._window[:filled]

    def _read_at(self, position: int, room: memoryview) -> int:
        """Read what comes at a position, directly if it can be; returns how much."""
        try:
            return os.preadv(self._source.fileno(), [room], position)
        except OSError as error:
            _go_on_as_usual(self._source, error)
            return os.preadv(self._source.fileno(), [room], position)
