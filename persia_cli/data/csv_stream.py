"""The bytes of a CSV file from its first line to its last; reads the header and detects a quote that is left open."""

import csv
from io import StringIO
from typing import Any

_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 64
_MARK = b"\xef\xbb\xbf"


class CsvStream:
    """A stream without leading blank lines that always ends with a line end; its header can be read in advance."""

    def __init__(self, stream: Any, delimiter: str, quote: str | None) -> None:
        self._stream, self._delimiter, self._quote = stream, delimiter, quote
        self._head = self._tail = b""
        self._is_at_end = False
        self.closed = False
        while not self._is_at_end and not {*b"\r\n"} & {*self._head}:
            self._head = (self._head + self._next(_HEAD_BYTES)).removeprefix(_MARK).lstrip(b"\r\n")

    def header(self) -> list[str]:
        """Return the fields of the first row, which spans several lines where quoted fields hold line ends.

        Raises UnicodeDecodeError if the row is not UTF-8, and csv.Error if it is not text.
        """
        while True:
            lines = list(StringIO(self._head.decode(errors="surrogateescape"), newline=""))
            if self._quote is None:
                reader = csv.reader(lines, delimiter=self._delimiter, quoting=csv.QUOTE_NONE)
            else:
                reader = csv.reader(lines, delimiter=self._delimiter, quotechar=self._quote)
            fields = next(reader, [])
            if reader.line_num < len(lines) or self._is_at_end:
                return [field.encode(errors="surrogateescape").decode() for field in fields]
            self._head += self._next(_HEAD_BYTES)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        if not self._head:
            return self._next(size)
        head, self._head = self._head, b""
        if size < 0:
            return head + self._next(size)
        self._head = head[size:]
        return head[:size]

    def leaves_open(self, last: str | None) -> bool:
        """Return True if a quote before `last`, the last field of the file, is never closed.

        A field with a line end in it must be in quotes, so the file would have to end with a quote.
        """
        if self._quote is None or last is None or not {"\n", "\r"} & set(last):
            return False
        return not self._tail.rstrip().endswith(self._quote.encode())

    def readable(self) -> bool:
        """Return True: the stream can be read, as files can."""
        return True

    def close(self) -> None:
        """Do nothing: the code that opened the stream closes it."""
        self.closed = True

    def _next(self, size: int) -> bytes:
        if self._is_at_end:
            return b""
        more = bytes(self._stream.read(size))
        if more and size >= 0:
            self._tail = (self._tail + more)[-_TAIL_BYTES:]
            return more
        self._is_at_end = True
        self._tail = (self._tail + more)[-_TAIL_BYTES:]
        return more if self._tail.endswith((b"\n", b"\r")) else more + b"\n"
