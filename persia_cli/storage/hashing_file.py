"""A file with a checksum of the written bytes."""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from xxhash import xxh128

from persia_cli.storage.blocks import Block, new_block

BLOCK_BYTES = 2**22
"""Size of the pieces, all but the last, that are written and hashed."""
BLOCKS = 4
"""Number of blocks: one is filled while the others wait to be written, so neither disk nor writer is idle."""


class HashingFile(io.RawIOBase):
    """A file that is being written to `sink`; call `finish` after the last `write`.

    Data is collected in blocks, in huge pages if possible: the system then passes them to the disk in a few pieces, not
    in thousands. Another thread writes blocks while the next one is filled. So an error of the sink is raised some
    blocks late. The XXH128 checksum of a full block takes a tenth of the time of writing it.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._digest = xxh128()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writing")
        self._under_way: deque[tuple[Block, Future[Any]]] = deque()
        self._free = [new_block(BLOCK_BYTES) for _ in range(BLOCKS)]
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
        """Pass the block to the writer, and begin another one, after the oldest is written if none is free."""
        content = self._block[: self._filled].data
        self._digest.update(content)
        self._under_way.append((self._block, self._thread.submit(self._sink.write, content)))
        if not self._free:
            self._wait()
        self._block, self._filled = self._free.pop(), 0

    def _wait(self) -> None:
        """Wait until the oldest block is written."""
        block, written = self._under_way.popleft()
        written.result()
        self._free.append(block)

    def finish(self) -> str:
        """Write the rest, and return the XXH128 checksum of all written bytes."""
        self._hand_over()
        while self._under_way:
            self._wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread; unwritten data is lost without `finish`."""
        self._thread.shutdown(cancel_futures=True)
        super().close()

    def tell(self) -> int:
        return self.nbytes
