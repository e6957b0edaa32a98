"""Files whose checksums are computed while they are read or written, each byte once, with threads that work ahead."""

import io
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from xxhash import xxh128

from persia_cli.storage.local_files import Block, new_block

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
        self._writing: deque[tuple[Block, Future[Any]]] = deque()
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
        self._writing.append((self._block, self._thread.submit(self._sink.write, content)))
        if not self._free:
            self._wait()
        self._block, self._filled = self._free.pop(), 0

    def _wait(self) -> None:
        """Wait until the oldest block is written."""
        block, written = self._writing.popleft()
        written.result()
        self._free.append(block)

    def finish(self) -> str:
        """Write the rest, and return the XXH128 checksum of all written bytes."""
        self._hand_over()
        while self._writing:
            self._wait()
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread; unwritten data is lost without `finish`."""
        self._thread.shutdown(cancel_futures=True)
        super().close()

    def tell(self) -> int:
        return self.nbytes


# Read

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


Item = TypeVar("Item")


def read_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield the items of an iterator; another thread reads the next one while the last one is used.

    So at most two are in memory. Errors of the iterator are raised here. A generator is closed at the end.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        following = thread.submit(next, items, None)
        try:
            while (item := following.result()) is not None:
                following = thread.submit(next, items, None)
                yield item
        finally:
            following.exception()
            if close := getattr(items, "close", None):
                close()
