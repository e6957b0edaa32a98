"""A file whose checksum is computed while it is read."""

import io
from collections.abc import Callable
from typing import Any

from xxhash import xxh128

REST_BYTES = 2**22
"""Size of the parts in which the rest of a file is read."""


class HashedSource(io.RawIOBase):
    """A file that is read once, from its begin to its end; call `finish` after the last `read` that is needed.

    The XXH128 checksum covers exactly the bytes that were used, and each byte is read from the disk once.
    """

    def __init__(self, source: Any, on_bytes: Callable[[int], None]) -> None:
        """Wrap a stream that has `read`; `on_bytes` is called with the size of each part."""
        self._source, self._on_bytes = source, on_bytes
        self._digest = xxh128()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """Return so many bytes, fewer only at the end of the file; the rest of the file if `size` is negative."""
        content = self._source.read(size)
        while 0 < len(content) < size and (more := self._source.read(size - len(content))):
            content = b"".join((content, more))
        self._digest.update(content)
        self._on_bytes(len(content))
        return content

    def finish(self) -> str:
        """Read the rest, and return the XXH128 checksum of the whole file."""
        while self.read(REST_BYTES):
            pass
        return self._digest.hexdigest()
