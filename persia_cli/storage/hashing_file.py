"""A file with a checksum of what is written to it."""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

BLOCK_BYTES = 2**22
"""Size of the pieces, all but the last, that are written and hashed."""
BLOCKS = 4
"""Number of blocks: one is filled, the others wait to be written and hashed, so that neither waits for the other."""
HUGE_PAGE = 2**21

Block = NDArray[np.uint8]


class HashingFile(io.RawIOBase):
    """A file that is being written to `sink`; call `finish` after the last `write`.

    What is written is collected in blocks, which lie in huge pages where there are such: the system then hands them to
    the disk in a few pieces, not in thousands. While some blocks are written and their BLAKE3 checksum computed, each
    on a thread of its own, the next one is filled. So an error of the sink is raised some blocks late.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._digest = blake3()
        self._threads = tuple(ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("hashing", "writing"))
        self._under_way: deque[tuple[Block, tuple[Future[Any], ...]]] = deque()
        self._free = [_new_block() for _ in range(BLOCKS)]
        self._block = self._free.pop()
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
        """Have the block written and hashed, and begin another, if need be once that is done with the oldest."""
        content, tasks = self._block[: self._filled].data, (self._digest.update, self._sink.write)
        done = tuple(thread.submit(task, content) for thread, task in zip(self._threads, tasks, strict=True))
        self._under_way.append((self._block, done))
        if not self._free:
            self._wait()
        self._block, self._filled = self._free.pop(), 0

    def _wait(self) -> None:
        """Wait until the oldest block is written and hashed."""
        block, under_way = self._under_way.popleft()
        for future in under_way:
            future.result()
        self._free.append(block)

    def finish(self) -> str:
        """Write what is left, and return the BLAKE3 checksum of all that was written."""
        self._hand_over()
        while self._under_way:
            self._wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the threads; what was not written is lost without `finish`."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        super().close()

    def tell(self) -> int:
        return self.nbytes


def _new_block() -> Block:
    """Return memory for a block, which begins on a page, a huge one if the system has such."""
    pages = mmap(-1, BLOCK_BYTES + HUGE_PAGE, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    with suppress(OSError):
        pages.madvise(MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    return whole[-whole.ctypes.data % HUGE_PAGE :][:BLOCK_BYTES]
