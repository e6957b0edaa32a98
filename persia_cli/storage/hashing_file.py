"""A file with a checksum of what is written to it."""

import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import mmap
from typing import Any

import numpy as np

BLOCK_BYTES = 2**22
"""Size of the pieces, all but the last, that are written and hashed."""


class HashingFile(io.RawIOBase):
    """A file that is being written to `sink`; call `finish` after the last `write`.

    What is written is collected in blocks, which begin on a page of memory. While one block is written and its SHA-256
    computed, each on a thread of its own, the next one is filled: a processor hashes about as fast as a disk writes,
    and one after the other would take twice as long. So an error of the sink is raised one block late.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="writing")
        self._under_way: tuple[Future[Any], ...] = ()
        self._block, self._other = (np.frombuffer(mmap(-1, BLOCK_BYTES), np.uint8) for _ in range(2))
        self._filled = 0
        self.nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content, done = np.frombuffer(data, np.uint8), 0
        while done < content.size:
            part = content[done : done + BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + part.size] = part
            self._filled += part.size
            done += part.size
            if self._filled == BLOCK_BYTES:
                self._hand_over()
        self.nbytes += done
        return done

    def _hand_over(self) -> None:
        """Have the block written and hashed, once that of the one before is done, and begin another."""
        self._wait()
        content = self._block[: self._filled].data
        self._under_way = tuple(self._threads.submit(do, content) for do in (self._digest.update, self._sink.write))
        self._block, self._other = self._other, self._block
        self._filled = 0

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, ()
        for future in under_way:
            future.result()

    def finish(self) -> str:
        """Write what is left, and return the SHA-256 of all that was written."""
        self._hand_over()
        self._wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the threads; what was not written is lost without `finish`."""
        self._threads.shutdown()
        super().close()

    def tell(self) -> int:
        return self.nbytes
