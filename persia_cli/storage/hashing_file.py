"""A file with a checksum of what is written to it."""

import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

ASIDE_BYTES = 2**16
"""Smallest piece that is hashed on another thread."""


class HashingFile(io.RawIOBase):
    """A file that is being written to `sink`; its SHA-256 is computed meanwhile, on a thread of its own.

    A processor with instructions for SHA-256 hashes about as fast as a good disk writes (1.8 GB/s), so one after the
    other would take twice as long.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._hashed: Future[None] | None = None
        self.nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._wait()
        if len(data) < ASIDE_BYTES:
            self._digest.update(data)
        else:
            self._hashed = self._hashing.submit(self._digest.update, data)
        self.nbytes += len(data)
        written: int = self._sink.write(data)
        return written

    def _wait(self) -> None:
        if self._hashed is not None:
            self._hashed.result()
            self._hashed = None

    def close(self) -> None:
        if not self.closed:
            self._hashing.shutdown()
            self._wait()
        super().close()

    def tell(self) -> int:
        return self.nbytes

    def sha256(self) -> str:
        return self._digest.hexdigest()
