"""Delimited text as blocks of typed columns; rows that do not parse are counted and reported by line."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.prepare.lines import MARK, first_line
from persia_cli.data.read.ids import text_buffers, text_id
from persia_cli.data.read.kinds import SKIP, Kind, values_of
from persia_cli.data.read.raw_values import made_of, text_lists
from persia_cli.errors import DataError


@dataclass(frozen=True)
class TextFormat:
    """The layout of a text file."""

    columns: Mapping[str, Kind]
    delimiter: str = "\t"
    """One or two ASCII characters."""
    header: bool = False
    """True if the first line names the columns; it must name exactly these."""
    quoted: bool = False
    """True if fields may be in double quotes, with "" for a quote inside; line ends inside are not allowed."""
    stripped: bool = False
    """True if blanks around a value are removed."""
    comment: str = ""
    """First character of lines that are comments and not rows."""
    blank_lines: bool = False
    """True if empty lines are allowed; they are not rows."""

    def check_header(self, file: Path) -> None:
        """Raise DataError if the first line of a file does not name the columns."""
        try:
            names = first_line(file).decode().split(self.delimiter)
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise DataError(f"{file}: its first line cannot be read, {error}") from error
        names = [name.strip().removeprefix('"').removesuffix('"') for name in names]
        if names != list(self.columns):
            raise DataError(
                f"{file}: its first line should name the columns {self.delimiter.join(self.columns)}, but says "
                f"{self.delimiter.join(names)[:500]}"
            )


Reject = Callable[[NDArray[np.int64], Sequence[str]], None]
"""Counts bad lines, numbered from 0 in the text that is read; there is a reason for each, or one for all."""


@dataclass
class TextBlock:
    """Some rows of a text file, n of them; `good` [n] is True for those still in use."""

    format: TextFormat
    lines: NDArray[np.int64]
    """int64[n]: the line number of each row."""
    reject_lines: Reject
    values: dict[str, Any]
    """Arrow array of each column, see `persia_cli.data.read.kinds.values_of`."""
    good: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.lines), np.bool_)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def integers(self, name: str, missing: int | None = None) -> NDArray[np.int64]:
        """Return an INTEGER column as int64[n]; an empty field is `missing`, or a bad row."""
        return self._filled(name, missing)

    def numbers(self, name: str, missing: float | None = None) -> NDArray[np.float64]:
        """Return a NUMBER column as float64[n]; an empty field is `missing`, or a bad row."""
        values: NDArray[np.float64] = self._filled(name, missing)
        self.reject(np.isinf(values), f"{name} is too large a number")
        return values

    def ids(self, name: str) -> Any:
        """Return a TEXT, hexadecimal or INTEGER column as an Arrow array of uint64, null for empty fields."""
        return self.values[name].view(pa.uint64())

    def texts(self, name: str) -> Any:
        """Return a BYTES column as an Arrow array of strings, null for empty fields."""
        return self.values[name]

    def made(self, raw: Sequence[RawColumns]) -> dict[str, Any]:
        """Return columns as they are declared; an empty field that has no number in its place is a bad row or null."""
        columns: dict[str, Any] = {}
        for each in raw:
            for column in each.columns:
                field = each.field_of(column)
                self._require_stripped(each, field)
                if each.read == "integer":
                    values: Any = self.integers(field, None if each.missing is None else int(each.missing))
                elif each.read == "number":
                    values = self.numbers(field, each.missing)
                elif each.read == "absence":
                    values = self.values[field].is_null().to_numpy(zero_copy_only=False).astype(np.float32)
                elif each.read == "texts":
                    values = self.id_lists(field, each.separator or "", each.table, each.stripped)
                else:
                    values = self.ids(field)
                    self._require_table(each, column)
                columns[column] = made_of(each, column, values, self.reject)
        return columns

    def _require_table(self, raw: RawColumns, column: str) -> None:
        """Raise DataError for a column that the format hashes under another name than its declaration says."""
        field, declared = raw.field_of(column), raw.table_of(column)
        hashed = self.format.columns[field].table or field
        if declared is not None and declared != hashed:
            raise DataError(
                f"{field} is hashed as {hashed} where the file is read, and as {declared} where {column} is made"
            )

    def _require_stripped(self, raw: RawColumns, field: str) -> None:
        """Raise DataError for text whose blanks are removed where the file is read and not in requests, or reversely.

        In requests numbers with blanks are refused.
        """
        if raw.read in ("text", "texts", "hexadecimal") and raw.stripped != self.format.stripped:
            read, declared = ("with" if each else "without" for each in (self.format.stripped, raw.stripped))
            raise DataError(
                f"{field} is read {read} `stripped` where the file is read, and declared {declared} it; let both agree"
            )

    def id_lists(self, name: str, separator: str, table: str | None = None, stripped: bool = False) -> Any:
        """Return a BYTES column of categories joined by `separator` as Arrow lists of uint64; an empty field is []."""
        return text_lists(table or name, pc.split_pattern(self.texts(name).fill_null(""), separator), stripped)

    def choices(self, name: str, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the index in `texts` of each value of a TEXT column; any other value is a bad row."""
        table = self.format.columns[name].table or name
        known = pa.array([text_id(table, text) for text in texts], pa.uint64())
        places = pc.index_in(self.ids(name), known)
        self.reject(places.is_null().to_numpy(zero_copy_only=False), f"{name} is not {' or '.join(texts)}")
        return np.array(places.fill_null(0), np.int64)

    def drop(self, rows: NDArray[np.bool_]) -> None:
        """Leave rows out without counting them."""
        self.good &= ~rows

    def reject(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Count the good rows that are True in `wrong`, and leave them out."""
        wrong = wrong & self.good
        if wrong.any():
            self.good &= ~wrong
            self.reject_lines(self.lines[wrong], [reason])

    def table(self, columns: Mapping[str, Any]) -> Any:
        """Return the good rows of columns [n] as an Arrow table."""
        table = pa.table(dict(columns))
        return table if self.good.all() else table.filter(pa.array(self.good))

    def _filled(self, name: str, missing: float | None) -> NDArray[Any]:
        values = self.values[name]
        if missing is None and values.null_count:
            self.reject(values.is_null().to_numpy(zero_copy_only=False), f"{name} is missing")
        return np.array(values.fill_null(missing or 0))


def parse_block(data: bytes, format: TextFormat, reject: Reject, first_line: int) -> tuple[TextBlock, int]:
    """Parse whole lines, the first of which is line `first_line`; return their rows and the number of lines."""
    count = data.count(b"\n")
    lines, columns, others = _split(data, count, format)
    if others:
        numbers = sorted(others)
        reject(np.array(numbers, np.int64) + first_line, [others[number] for number in numbers])
    block = TextBlock(format, lines + first_line, reject, {})
    for name, texts in columns.items():
        block.values[name], flaws = values_of(format.columns[name], name, texts)
        for wrong, reason in flaws:
            block.reject(wrong, reason)
    return block, count


def _split(data: bytes, count: int, format: TextFormat) -> tuple[NDArray[np.int64], dict[str, Any], dict[int, str]]:
    """Split `count` lines into fields by pyarrow's CSV reader.

    Return the line of each row, the texts of each column that is used (Arrow strings, not checked to be UTF-8, null for
    empty fields), and for each line that is neither a row nor allowed the reason.

    pyarrow would join lines where a quote is left open, end one at a carriage return, and take `"a"b` for `ab`, all
    without a word. So each line that it gets has been checked before, and is exactly one row or one bad row.
    """
    delimiter = format.delimiter.encode()
    stand_ins: dict[bytes, str] = {}
    if len(delimiter) > 1:
        delimiter = _unused(data)
        stand_ins[delimiter] = format.delimiter
        data = data.replace(format.delimiter.encode(), delimiter)
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        stand_in = _unused(data + delimiter)
        stand_ins[stand_in] = "\r"
        data = data.replace(b"\r", stand_in).replace(stand_in + b"\n", b"\n")
    has_quotes = format.quoted and b'"' in data
    others: dict[int, str] = {}
    rows = np.arange(count)

    def drop(wrong: NDArray[np.bool_], reason: str | None) -> None:
        nonlocal data, rows
        if wrong.any():
            others.update({} if reason is None else dict.fromkeys(rows[wrong].tolist(), reason))
            rows = rows[~wrong]
            bounds = _bounds_of(data)
            edges = bounds[np.flatnonzero(np.diff(wrong, prepend=True, append=True))].tolist()
            data = b"".join(data[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True))

    if format.comment:
        drop(_begin_with(data, format.comment), None)
    drop(_begin_with(data, "\r\n"), None if format.blank_lines else "the line is empty")
    if has_quotes:
        if format.stripped:
            data = _without_blanks(data, delimiter)
            if len(format.columns) > 1:
                drop(_begin_with(data, "\r\n"), f"1 column where {len(format.columns)} belong")
        drop(~_closed(data, delimiter), "a quote is not closed where its field ends")
    if not rows.size:
        return rows, {name: pa.array([], pa.string()) for name in format.columns}, others
    table, wrong = _read(data, delimiter, format)
    if table.num_rows + len(wrong) != rows.size:
        raise pa.ArrowInvalid(f"{table.num_rows + len(wrong)} rows were found in {rows.size} lines")
    others |= {int(rows[row]): reason for row, reason in wrong.items()}
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    if format.stripped and not has_quotes:
        columns = {name: _trimmed(texts) for name, texts in columns.items()}
    for stand_in, text in stand_ins.items():
        for name, texts in columns.items():
            if ord(stand_in) in text_buffers(texts)[0]:
                columns[name] = pc.replace_substring(texts, stand_in.decode(), text)
    return np.delete(rows, list(wrong)), columns, others


def _unused(data: bytes) -> bytes:
    """Return a character that is not in the text, to stand for something else for a while."""
    for code in (*range(1, 9), *range(14, 32), 127):
        if code not in data:
            return bytes([code])
    raise pa.ArrowInvalid("it holds all control characters, so it is not text")


def _bounds_of(data: bytes) -> NDArray[np.int64]:
    """Return where each line begins, and where the last one ends."""
    return np.concatenate([[0], np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1])


def _begin_with(data: bytes, characters: str) -> NDArray[np.bool_]:
    """Return True for each line that begins with one of the characters."""
    first = np.frombuffer(data, np.uint8)[_bounds_of(data)[:-1]]
    return np.isin(first, np.frombuffer(characters.encode(), np.uint8))


def _without_blanks(data: bytes, delimiter: bytes) -> bytes:
    """Return lines without the blanks around values; those in quotes are left."""
    end = re.escape(delimiter)
    return re.sub(rb' *("(?:[^"\n]|"")*"|[^%s\n]*?) *(%s|\r?\n)' % (end, end), rb"\1\2", data)


def _trimmed(texts: Any) -> Any:
    """Return texts without the blanks around them, null where nothing is left."""
    trimmed = pc.ascii_trim(texts, " ")
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), None, trimmed)


def _closed(data: bytes, delimiter: bytes) -> NDArray[np.bool_]:
    """Return True for each line whose quotes are closed where their fields end."""
    end = f"\\x{delimiter[0]:02x}"
    field = rf'(?:"(?:[^"\n]|"")*"|[^"{end}\r\n][^{end}\r\n]*|)'
    bounds = _bounds_of(data)
    lines = pa.Array.from_buffers(pa.large_binary(), bounds.size - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    whole = pc.match_substring_regex(lines, rf"^{field}(?:{end}{field})*\r?\n$")
    found: NDArray[np.bool_] = whole.to_numpy(zero_copy_only=False)
    return found


def _read(data: bytes, delimiter: bytes, format: TextFormat) -> tuple[Any, dict[int, str]]:
    """Return the rows of lines as an Arrow table, and the reason for each line with too few or too many fields."""
    wrong: dict[int, str] = {}

    def note(row: Any) -> str:
        there = f"{row.actual_columns} column{'' if row.actual_columns == 1 else 's'}"
        wrong[row.number - 1] = f"{there} where {row.expected_columns} belong"
        return "skip"

    if data.startswith(MARK):  # pyarrow skips a mark, but this is no beginning of a file
        data = MARK + data
    used = [name for name, kind in format.columns.items() if kind != SKIP]
    reading = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(format.columns))
    parsing = csv.ParseOptions(
        delimiter=delimiter.decode(),
        quote_char='"' if format.quoted else False,
        ignore_empty_lines=False,
        invalid_row_handler=note,
    )
    converting = csv.ConvertOptions(
        check_utf8=False,
        include_columns=used,
        column_types=dict.fromkeys(used, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    return csv.read_csv(pa.BufferReader(data), reading, parsing, converting), wrong
