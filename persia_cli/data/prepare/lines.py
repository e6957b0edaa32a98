"""A file, or a range of one, read in blocks of whole lines; plain or compressed, with a few blocks in memory."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from persia_cli.data.read.files import CODECS

BLOCK_BYTES = 1 << 22
"""Bytes read at a time, and the longest line."""
MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""


def is_compressed(file: Path) -> bool:
    """Return True if the ending of a file's name shows that it is compressed, and so cannot be read from its middle."""
    return file.suffix in CODECS


def read_lines(
    file: Path, start: int, stop: int | None, progress: Callable[[int], None]
) -> Generator[bytes | None, None, None]:
    """Yield the lines of a file that begin in bytes [start, stop), in blocks; None stands for a line that is too long.

    A block ends with a line end, though the file may not. A compressed file is read whole, or from its second line on
    if `start` is 1, and decompressed ahead by a thread. `progress` gets the number of bytes read from the file since
    its last call.
    """
    with pa.OSFile(str(file)) as raw:
        if not is_compressed(file):
            raw.seek(max(start - 1, 0))
            yield from _blocks(_Counted(raw, raw, progress), start, stop)
            return
        if not raw.size():
            raise OSError("it is empty, as no compressed file is")
        with (
            pa.CompressedInputStream(raw, CODECS[file.suffix]) as unpacked,
            _ahead(_blocks(_Counted(raw, unpacked, progress), start, None)) as blocks,
        ):
            yield from blocks


def first_line(file: Path) -> bytes:
    """Return the first line of a file without its line end and byte order mark, at most a block of it."""
    with closing(read_lines(file, 0, len(MARK) + 1, lambda _: None)) as blocks:
        block = next(blocks, None) or b""
    return block.partition(b"\n")[0].removesuffix(b"\r")


class _Counted:
    """The content of a file, packed or not; reports how many of the file's own bytes were read for it."""

    def __init__(self, raw: Any, content: Any, progress: Callable[[int], None]) -> None:
        self._raw, self._content, self._progress = raw, content, progress
        self._place = raw.tell()

    def read(self, size: int) -> bytes:
        block: bytes = self._content.read(size)
        before, self._place = self._place, self._raw.tell()
        self._progress(self._place - before)
        return block


def _blocks(content: _Counted, start: int, stop: int | None) -> Iterator[bytes | None]:
    """Yield blocks of whole lines of a content whose position is the byte before `start`, or 0."""
    base = max(start - 1, 0)  # position of `buffer` in the file
    buffer = b""
    skipping, too_long = start > 0, False  # skip to the next line end: of the previous part's line, or of a long one
    while more := content.read(BLOCK_BYTES):
        if not base and not buffer:
            base, more = (len(MARK), more[len(MARK) :]) if more.startswith(MARK) else (0, more)
        buffer += more
        if skipping:
            cut = buffer.find(b"\n") + 1 or len(buffer)
            skipping = not buffer.endswith(b"\n", 0, cut)
            base, buffer = base + cut, buffer[cut:]
            if skipping:
                continue
            if too_long:
                yield None
                too_long = False
        if stop is not None and base >= stop:
            return
        if stop is not None and base + len(buffer) >= stop:
            cut = buffer.find(b"\n", max(stop - 1 - base, 0)) + 1
            if cut:
                yield buffer[:cut]
                return
        cut = buffer.rfind(b"\n") + 1
        if cut:
            yield buffer[:cut]
            base, buffer = base + cut, buffer[cut:]
        if len(buffer) > BLOCK_BYTES:
            base, buffer, skipping, too_long = base + len(buffer), b"", True, True
    if too_long:
        yield None
    elif buffer and (stop is None or base < stop):
        yield buffer + b"\n"


@contextmanager
def _ahead(blocks: Iterator[bytes | None]) -> Iterator[Iterator[bytes | None]]:
    """Prepare the next block in a thread while the last one is processed."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="unpack") as pool:

        def ordered() -> Iterator[bytes | None]:
            waiting = pool.submit(next, blocks, end)
            while (block := waiting.result()) is not end:
                waiting = pool.submit(next, blocks, end)
                yield block  # type: ignore[misc]

        yield ordered()
