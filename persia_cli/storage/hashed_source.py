"""A file whose checksum is computed while it is read."""

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from blake3 import blake3

PARTS_BEHIND = 8
"""Largest number of parts that are read and not hashed yet; they stay in memory until then."""
REST_BYTES = 2**22
"""Size of the parts in which the rest of a file is read."""


class HashedSource(io.RawIOBase):
    """A file that is read once, from its begin to its end; call `finish` after the last `read` that is needed.

    The BLAKE3 checksum is computed on a thread of its own while a part is used. So it is that of what was used,
    and each byte comes from the disk once.
    """

    def __init__(self, source: Any, on_bytes: Callable[[int], None]) -> None:
        """Begin with a stream that has `read`; `on_bytes` is called with the size of each part."""
        self._source, self._on_bytes = source, on_bytes
        self._digest = blake3()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hashing")
        self._behind: deque[Future[Any]] = deque()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer only at the end of the file; all that is left if `size` is negative."""
        content: bytes = self._source.read(size)
        while 0 < len(content) < size and (more := self._source.read(size - len(content))):
            content += more
        self._behind.append(self._thread.submit(self._digest.update, content))
        while len(self._behind) > PARTS_BEHIND:
            self._behind.popleft().result()
        self._on_bytes(len(content))
        return content

    def finish(self) -> str:
        """Read what is left, and return the BLAKE3 checksum of the whole file."""
        while self.read(REST_BYTES):
            pass
        for part in self._behind:
            part.result()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread; the stream stays open."""
        self._thread.shutdown()
        super().close()
