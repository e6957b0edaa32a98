"""CSV to tables; the type of a column is found from the whole file.

A column holds integers if every field is an integer in its usual form (7, not 07); else numbers if every field is one;
else true and false if every field is one of these; else dates if every field is one (2024-01-31), or timestamps
(2024-01-31T12:30:00Z, all with a zone or all without); else text. Fields that are null markers are left out of this.
Blanks around a number, or around a column's name, do not belong to it; blanks around text do.
"""

import csv
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from functools import partial
from io import StringIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.lent_stream import csv_batches
from persia_cli.data.read.text_files import UnreadRows, csv_lines

_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 64
_MARK = b"\xef\xbb\xbf"


class CsvStream:
    """A stream without leading blank lines that always ends with a line end; its header can be read in advance."""

    def __init__(self, stream: Any, delimiter: str, quote: str | None) -> None:
        self._stream, self._delimiter, self._quote = stream, delimiter, quote
        self._head = self._tail = b""
        self._is_at_end = False
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


Open = Callable[[], Any]
"""Opens a file's bytes, decompressed, from the beginning."""

BLOCK_BYTES = 1 << 21
"""Bytes of text parsed at a time, and the longest row allowed; pyarrow reads up to 32 blocks ahead."""
_SHOWN = 40
_BLANKS = " \t"
_INTEGER = r"^[ \t]*(?:0|-?[1-9][0-9]*)[ \t]*$"
_FRACTION = r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER = rf"^[ \t]*(?:{_FRACTION}|-?(?:nan|NaN|inf|Infinity))[ \t]*$"
_BOOLEAN = r"^(?:true|True|TRUE|false|False|FALSE)$"
_NUMBERS = ((_INTEGER, pa.int64()), (_INTEGER, pa.uint64()), (_NUMBER, pa.float64()), (_BOOLEAN, pa.bool_()))
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
_KINDS = (
    *_NUMBERS,
    (rf"^{_DATE}$", pa.date32()),
    (rf"^{_DATE}{_CLOCK}$", pa.timestamp("us")),
    (rf"^{_DATE}{_CLOCK}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})$", pa.timestamp("us", "UTC")),
)
"""The types a column may have, the narrowest first: the pattern of its fields, and the Arrow type they must fit."""


def read_csv(open_file: Open, form: CsvFormat, delimiter: str, unread: UnreadRows) -> Generator[Any, None, None]:
    """Yield a file's rows as Arrow batches of one schema; rows with too few or too many fields go to `unread`.

    Reads the file twice, and once more to find the lines of such rows.
    Raises pyarrow.ArrowInvalid, csv.Error or UnicodeDecodeError for a file that is not CSV.
    """
    with open_file() as raw:
        stream = CsvStream(raw, delimiter, form.quote)
        names = _names(stream, form)
        with closing(_batches(stream, names, form, delimiter, None, UnreadRows())) as batches:
            types, last = _types_of(batches, names, form)
        if last is not None and stream.leaves_open(last):
            start = " ".join(last[:_SHOWN].split())
            raise pa.ArrowInvalid(f"the quote before {start!r} is never closed: all that follows would be one field")
    with open_file() as raw:
        stream = CsvStream(raw, delimiter, form.quote)
        with closing(_batches(stream, names, form, delimiter, types, unread)) as batches:
            for batch in batches:
                yield batch.rename_columns(names)
    if unread.count:
        with open_file() as raw:
            unread.name_lines(line for line, _ in csv_lines(raw, form, delimiter))
    yield pa.schema(list(zip(names, types, strict=True))).empty_table()


def _batches(
    stream: CsvStream, names: list[str], form: CsvFormat, delimiter: str, types: list[Any] | None, unread: UnreadRows
) -> Generator[Any, None, None]:
    """Return batches whose columns are named by numbers, for names may repeat; without `types` all columns are text."""
    numbers = [str(number) for number in range(len(names))]
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=numbers)
    reading.skip_rows_after_names = 1 if form.header is True else 0
    parsing = arrow_csv.ParseOptions(
        delimiter=delimiter,
        quote_char=form.quote or False,
        newlines_in_values=form.quote is not None,
    )
    converting = arrow_csv.ConvertOptions(
        column_types=dict(zip(numbers, types or [pa.string()] * len(names), strict=True)),
        null_values=list(form.nulls),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    return csv_batches(stream, partial(_skip, unread), reading, parsing, converting)


def _names(stream: CsvStream, form: CsvFormat) -> list[str]:
    return [name.strip(_BLANKS) for name in stream.header()] if form.header is True else list(form.header)


def _skip(unread: UnreadRows, row: Any) -> str:
    unread.add(
        row.number, f"{row.actual_columns} fields where there are {row.expected_columns} columns", row.text or ""
    )
    return "skip"


def _types_of(batches: Iterator[Any], names: list[str], form: CsvFormat) -> tuple[list[Any], str | None]:
    """Return the type of each column, the null type where there is no value, and the last field of the file."""
    left = [[] if name in form.text else list(_KINDS) for name in names]
    filled = [False for _ in names]
    last = None
    for batch in batches:
        for number, column in enumerate(batch.columns):
            values = column.drop_null()
            if len(values):
                filled[number] = True
                left[number] = [kind for kind in left[number] if _fits(values, *kind)]
        if batch.num_rows:
            last = batch.column(len(names) - 1)[-1].as_py()
    kinds = [known[0][1] if known else pa.string() for known in left]
    return [kind if has_values else pa.null() for kind, has_values in zip(kinds, filled, strict=True)], last


def _fits(values: Any, pattern: str, kind: Any) -> bool:
    if not pc.all(pc.match_substring_regex(values, pattern)).as_py():
        return False
    with suppress(pa.ArrowInvalid):
        values.cast(kind)
        return True
    with suppress(pa.ArrowInvalid):  # the CSV reader ignores blanks around a number, a cast does not
        pc.utf8_trim(values, _BLANKS).cast(kind)
        return True
    return False


def numbers_of(texts: Any, has_booleans: bool) -> Any:
    """Return texts as the numbers that a column of such fields holds, of the narrowest type that fits all of them.

    True and false are read only with `has_booleans`. If no type fits, they stay texts, without the blanks around them.
    """
    values = texts.drop_null()
    trimmed = pc.utf8_trim(texts, _BLANKS)
    for pattern, kind in _NUMBERS:
        if (kind != pa.bool_() or has_booleans) and _fits(values, pattern, kind):
            return trimmed.cast(kind)
    return trimmed
