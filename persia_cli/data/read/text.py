"""Text files in blocks of whole rows, and delimited rows as texts of columns; rows that do not parse are rejected.

pyarrow would join rows where a quote is left open, end one at a carriage return, and take `"a"b` for `ab`, all without
a word. So a kernel finds the rows first, and pyarrow gets only those that are right.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import fs

from persia_cli.data.read.bad_rows import BadRows, Reject, ignore
from persia_cli.data.read.files import CODECS
from persia_cli.errors import DataError, count, one_line

BLOCK_BYTES = 1 << 22
"""Bytes read at a time, and the longest row."""
MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
_STAND_IN = "\x1f"
"""Takes the place of a delimiter of two characters for pyarrow."""
_SHOWN = 60
CONVERT = "convert it from its encoding, for instance as iconv -f WINDOWS-1252 -t UTF-8 does"
BLANK = 1
"""The flaw of an empty line."""
_FLAWS = (
    "",
    "the line is empty",
    "a quote is not closed where its field ends",
    "a carriage return is not at the end of its line",
)
"""The reasons for the flaws that `persia_cli.kernels.batch.text.find_rows` finds."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The rows of a text file."""

    delimiter: str = "\t"
    """One or two ASCII characters."""
    quote: str | None = None
    """Quote around fields, doubled for a quote inside; None: no field is in quotes."""
    spanning: bool = False
    """True if line ends may stand in quotes."""
    header: bool = False
    """True if the first row is no data."""
    comment: str = ""
    """First character of lines that are comments and not rows."""
    blank_lines: bool = False
    """True if empty lines are allowed; they are not rows."""
    nulls: tuple[str, ...] = ("",)
    """Fields that stand for null."""


def unnoticed(nbytes: int) -> None:
    """Ignore the progress; what is found of files is pickled with this."""


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or compressed, on any file system."""

    path: str
    progress: Callable[[int], None] = unnoticed
    """Gets the number of bytes read from the file since its last call."""
    filesystem: Any = field(default_factory=fs.LocalFileSystem)

    def open(self, start: int = 0) -> io.BufferedReader:
        """Open the file at a byte; raises DataError."""
        return io.BufferedReader(_Bytes(self, start), BLOCK_BYTES)


def is_compressed(path: Path | str) -> bool:
    """Return True if the ending of a file's name shows that it is compressed, and so cannot be read from its middle."""
    return Path(path).suffix.lower() in CODECS


class _Bytes(io.RawIOBase):
    """The content of a file, unpacked; raises DataError if it cannot be read."""

    def __init__(self, file: TextFile, start: int) -> None:
        self._file, self._place = file, start
        self._raw: Any = None
        self._content: Any = None
        try:
            self._raw = file.filesystem.open_input_file(file.path)
            if is_compressed(file.path) and not self._raw.size():
                raise OSError("it is empty, as no compressed file is")
            self._raw.seek(start)
            packed = CODECS.get(Path(file.path).suffix.lower())
            self._content = pa.CompressedInputStream(self._raw, packed) if packed else self._raw
        except OSError as error:
            raise DataError(f"{file.path}: cannot be read ({one_line(error)})") from error

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number."""
        try:
            size = int(self._content.readinto(buffer))
        except OSError as error:
            raise DataError(f"{self._file.path}: cannot be read ({one_line(error)}); write it again") from error
        before, self._place = self._place, self._raw.tell()
        self._file.progress(self._place - before)
        return size

    def close(self) -> None:
        """Close the file."""
        for file in (self._content, self._raw):
            if file is not None:
                file.close()
        super().close()


class TextRows(NamedTuple):
    """Some rows, n of them, without their fields."""

    data: bytes
    starts: NDArray[np.int64]
    """int64[n + 1]: the byte on which each begins, and the last one ends."""
    lines: NDArray[np.int64]
    """int64[n + 1]: the line on which each begins, from 1 for the first line that is read, and the one behind them."""
    fields: NDArray[np.int64]
    flaws: NDArray[np.uint8]

    def text(self, row: int) -> str:
        """Return a row for messages."""
        plain = " ".join(self.data[self.starts[row] : self.starts[row + 1]].decode(errors="replace").split())
        return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}…"

    def joined(self, wanted: NDArray[np.bool_]) -> bytes:
        """Return the text of the rows that are True in `wanted`."""
        edges = self.starts[np.flatnonzero(np.diff(wanted, prepend=False, append=False))].tolist()
        return b"".join(self.data[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True))


def read_rows(
    file: TextFile, layout: Layout, reject: Reject, start: int = 0, stop: int | None = None
) -> Iterator[TextRows]:
    """Yield the rows of a file that begin in bytes [start, stop), in blocks; those after its header.

    A row longer than a block is rejected. Raises DataError if the file cannot be read, is UTF-16, or has a quote that
    is never closed.
    """
    with file.open(max(start - 1, 0)) as stream:
        base, line, rest = start, 1, b""
        if start:
            base = start - 1 + _skip_line(stream)
        is_header = layout.header and not start
        while (stop is None or base < stop) and ((more := stream.read(BLOCK_BYTES)) or rest):
            data = rest + more
            if not base and line == 1 and not rest:
                _refuse_utf16(file.path, data)
                data, base = (data[len(MARK) :], len(MARK)) if data.startswith(MARK) else (data, 0)
            if not more and not data.endswith(b"\n"):
                data += b"\n"
            rows = _rows_of(data, layout, line)
            end, next_line = int(rows.starts[-1]), int(rows.lines[-1])
            rest = data[end:]
            if not end and (not more or len(data) > BLOCK_BYTES):
                if layout.spanning and layout.quote:
                    why = "is never closed" if not more else f"seems not to be closed: {BLOCK_BYTES >> 20} MiB follow"
                    raise DataError(f"{file.path} line {line}: a quote in this row {why}; close it, or correct it")
                reject(np.array([line]), ["the line is too long to be a row"])
                base, line, rest = base + len(data) + _skip_line(stream), line + 1, b""
                continue
            if stop is not None and base + end >= stop:
                rows = _part(rows, 0, int(np.searchsorted(rows.starts[:-1], stop - base)))
            if is_header and (known := np.flatnonzero(rows.flaws != BLANK)).size:
                rows, is_header = _part(rows, int(known[0]) + 1, len(rows.fields)), False
            yield rows
            base, line = base + end, next_line


def _part(rows: TextRows, start: int, stop: int) -> TextRows:
    """Return the rows [start, stop)."""
    edges, rows_there = slice(start, stop + 1), slice(start, stop)
    return TextRows(rows.data, rows.starts[edges], rows.lines[edges], rows.fields[rows_there], rows.flaws[rows_there])


def _skip_line(stream: io.BufferedReader) -> int:
    """Read up to the next line end; return the number of bytes."""
    size = 0
    while piece := stream.readline(BLOCK_BYTES):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def _rows_of(data: bytes, layout: Layout, line: int) -> TextRows:
    # numba takes half a second to import.
    from persia_cli.kernels.batch.text import find_rows

    text = np.frombuffer(data, np.uint8)
    number = np.count_nonzero(text == ord("\n"))
    starts, lines, fields = (np.empty(number + 1, np.int64) for _ in range(3))
    flaws = np.empty(number + 1, np.uint8)
    delimiter, second = (*map(ord, layout.delimiter), -1)[:2]
    quote = -1 if layout.quote is None else ord(layout.quote)
    n = find_rows(text, np.uint8(delimiter), second, quote, layout.spanning, starts, lines, fields, flaws)
    return TextRows(data, starts[: n + 1], lines[: n + 1] + line, fields[:n], flaws[:n])


def _refuse_utf16(path: str, head: bytes) -> None:
    """Raise DataError for a file in UTF-16, which may look like text with a zero byte for each letter."""
    even, odd = head[:4:2], head[1:4:2]
    encoding = "UTF-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else None
    if b"\0\0" in (even, odd) and even != odd:
        encoding = "UTF-16BE" if even == b"\0\0" else "UTF-16LE"
    if encoding is not None:
        raise DataError(
            f"{path}: the file is not UTF-8 (it begins as {encoding} does); convert it, as "
            f"iconv -f {encoding} -t UTF-8 does"
        )


def header_of(file: TextFile, layout: Layout) -> list[str]:
    """Return the fields of a file's first row that is not empty; raises DataError if there is none."""
    plain = replace(layout, header=False, nulls=())
    for rows in read_rows(TextFile(file.path, filesystem=file.filesystem), plain, ignore):
        for row in np.flatnonzero(rows.flaws != BLANK)[:1].tolist():
            width = int(rows.fields[row])
            bad = BadRows(0)
            _, columns = texts_of(
                _part(rows, row, row + 1), plain, width, range(width), partial(bad.reject, file.path, 0)
            )
            if bad.count:
                raise DataError(f"{file.path} {bad.found[0]}; correct its header")
            try:
                return [column[0].as_py() for column in columns]
            except UnicodeDecodeError as error:
                raise DataError(f"{file.path}: the file is not UTF-8 (in its header); {CONVERT}") from error
    raise DataError(f"{file.path}: the file has no header, only blank lines; write it again")


def texts_of(
    rows: TextRows, layout: Layout, width: int, used: Sequence[int], reject: Reject
) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the lines int64[n] of the rows that have `width` fields, and the texts [n] of the columns `used`.

    Texts are Arrow strings, which need not be UTF-8. Other rows are rejected.
    """
    flaws = rows.flaws
    is_row = flaws != BLANK if layout.blank_lines else np.ones(len(flaws), np.bool_)
    if layout.comment:
        is_row &= np.frombuffer(rows.data, np.uint8)[rows.starts[:-1]] != ord(layout.comment)
    right = (flaws == 0) & (rows.fields == width)
    if (wrong := np.flatnonzero(is_row & ~right)).size:
        reject(rows.lines[wrong], [_reason(rows, row, width) for row in wrong.tolist()])
    right &= is_row
    text = rows.joined(right)
    if len(layout.delimiter) > 1:
        text = text.replace(layout.delimiter.encode(), _STAND_IN.encode())
    if text.startswith(MARK):  # pyarrow skips a mark, but this is no beginning of a file
        text = MARK + text
    names = [str(number) for number in range(width)]
    chosen = [names[number] for number in used]
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)
    parsing = arrow_csv.ParseOptions(
        delimiter=layout.delimiter if len(layout.delimiter) == 1 else _STAND_IN,
        quote_char=layout.quote or False,
        newlines_in_values=layout.spanning,
        ignore_empty_lines=False,
    )
    converting = arrow_csv.ConvertOptions(
        check_utf8=False,
        include_columns=chosen,
        column_types=dict.fromkeys(chosen, pa.string()),
        null_values=list(layout.nulls),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    lines = rows.lines[:-1][right]
    if not lines.size:
        return lines, [pa.array([], pa.string()) for _ in used]
    table = arrow_csv.read_csv(pa.BufferReader(text), reading, parsing, converting)
    if table.num_rows != lines.size:
        raise pa.ArrowInvalid(f"{table.num_rows} rows were found in {lines.size} lines")
    columns = [column.combine_chunks() for column in table.columns]
    if len(layout.delimiter) > 1 and layout.quote:
        columns = [pc.replace_substring(column, _STAND_IN, layout.delimiter) for column in columns]
    return lines, columns


def not_utf8(texts: Any) -> NDArray[np.bool_] | None:
    """Return True for each Arrow string that is not UTF-8, None if all are."""
    with suppress(pa.ArrowInvalid):
        texts.validate(full=True)
        return None
    return np.array([_is_invalid(text or b"") for text in texts.cast(pa.binary()).to_pylist()])


def _is_invalid(text: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        text.decode()
        return False
    return True


def _reason(rows: TextRows, row: int, width: int) -> str:
    """Return why a row does not parse."""
    if flaw := _FLAWS[rows.flaws[row]]:
        return flaw
    there = f"there {'is' if width == 1 else 'are'} {count(width, 'column')}"
    return f"{count(int(rows.fields[row]), 'field')} where {there}: {rows.text(row)}"
