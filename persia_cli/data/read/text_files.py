"""The bytes of text files, and their lines for messages: of rows that could not be read, and of one that was."""

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.files import CODECS, DataFile, Format
from persia_cli.errors import DataError, one_line

Progress = Callable[[int], None]
"""Called with the number of bytes read from the file, before decompression."""


class TextStream(io.RawIOBase):
    """A file that is read from beginning to end; raises DataError if it cannot be read."""

    def __init__(self, filesystem: Any, file: DataFile, progress: Progress | None = None) -> None:
        self._file, self._progress = file, progress
        self._raw: Any = None
        self._bytes: Any = None
        codec = CODECS.get(Path(file.path).suffix.lower())
        try:
            self._raw = filesystem.open_input_file(file.path)
            self._bytes = pa.CompressedInputStream(self._raw, codec) if codec else self._raw
        except OSError as error:
            raise DataError(f"{file.path}: cannot be read ({one_line(error)})") from error

    def close(self) -> None:
        """Close the file."""
        for each in (self._bytes, self._raw):
            if each is not None:
                each.close()
        super().close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; raises DataError if the file is damaged."""
        if self._progress is not None:
            self._progress(self._raw.tell())
        try:
            return bytes(self._bytes.read(size) if size >= 0 else self._bytes.read())
        except OSError as error:
            raise DataError(f"{self._file.path}: cannot be read ({one_line(error)}); write it again") from error

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, as Python's text reader asks; return their number."""
        more = self.read(len(buffer))
        buffer[: len(more)] = more
        return len(more)


def as_text(stream: TextStream) -> io.TextIOWrapper:
    """Return a stream's lines as text with their line ends; bytes that are not UTF-8 are replaced."""
    return io.TextIOWrapper(io.BufferedReader(stream, 1 << 20), "utf-8-sig", errors="replace", newline="")


SHOWN = 5
_LONGEST = 60


@dataclass(slots=True)
class UnreadRows:
    """Rows left out of a file; `lines` and `reasons` describe the first few."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    """The line of the file on which each begins, counted from 1."""
    reasons: list[str] = field(default_factory=list)

    def add(self, line: int, reason: str, text: str) -> None:
        """Count a row; where `line` is the number of the row instead, `name_lines` replaces it later."""
        self.count += 1
        if len(self.lines) < SHOWN:
            shown = " ".join(text.split())
            shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
            self.lines.append(line)
            self.reasons.append(f"{reason}: {shown}")

    def name_lines(self, lines: Iterable[int]) -> None:
        """Replace row numbers by line numbers; `lines` holds the line of each row of the file, from the first."""
        numbers = sorted(set(self.lines))
        each = iter(lines)
        found = {}
        for before, number in zip([0, *numbers], numbers, strict=False):
            found[number] = next(islice(each, number - before - 1, None), number)
        self.lines = [found[number] for number in self.lines]

    @property
    def first(self) -> list[str]:
        """A sentence for each of the first few rows."""
        return [f"line {line}: {reason}" for line, reason in zip(self.lines, self.reasons, strict=True)]

    def to_json(self) -> bytes:
        """Encode for a file's metadata."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "UnreadRows":
        """Decode the bytes of `to_json`."""
        return cls(**json.loads(text))


PATIENCE_S = 20.0
"""Longest search for a line; in a huge file the message gives the number of the row instead."""
_LOOK_EVERY = 10_000


@dataclass(frozen=True, slots=True)
class TextLines:
    """A text file, and the options that separate its rows."""

    filesystem: Any
    file: DataFile
    kind: Format
    form: CsvFormat

    def line_of(self, row: int) -> int | None:
        """Return the line that a row begins on, both counted from the first; None if the search takes too long.

        Rows are those after the header that can be read.
        """
        with TextStream(self.filesystem, self.file) as stream:
            if self.kind == "csv":
                lines = _whole_rows(stream, self.form, delimiter_of(self.file, self.form))
            else:
                lines = (number for number, line in enumerate(as_text(stream), 1) if _is_object(line))
            return next(islice(_within(lines, PATIENCE_S), row, None), None)


def delimiter_of(file: DataFile, form: CsvFormat) -> str:
    """Return the delimiter of a file's fields: the configured one, or a tab for files named .tsv, else a comma."""
    return form.delimiter or ("\t" if ".tsv" in file.path.rpartition("/")[2].lower() else ",")


_GUESSED = (",", ";", "\t", "|")
_GUESS_ROWS = 50


def guessed_delimiter(filesystem: Any, file: DataFile, form: CsvFormat) -> str | None:
    """Return the delimiter that divides the first rows of a file into equally many fields, if it is not the usual one.

    None if the usual one divides them, or no other does.
    """

    def columns(delimiter: str) -> int:
        with TextStream(filesystem, file) as stream:
            rows = [len(fields) for _, fields in islice(csv_lines(stream, form, delimiter), _GUESS_ROWS)]
        return rows[0] if len(set(rows)) == 1 else 0

    usual = delimiter_of(file, form)
    found = {each: columns(each) for each in dict.fromkeys([usual, *_GUESSED])}
    best = max(found, key=lambda each: found[each])
    return None if form.delimiter is not None or found[usual] > 1 or found[best] < 2 else best


def csv_lines(stream: Any, form: CsvFormat, delimiter: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the first line and the fields of each row, including the header; blank lines are not rows."""
    text = as_text(stream)
    if form.quote is None:
        reader = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(text, delimiter=delimiter, quotechar=form.quote)
    before = 0
    with suppress(csv.Error):  # e.g. a field longer than Python's limit: the rows after it are not found
        for fields in reader:
            if fields:
                yield before + 1, fields
            before = reader.line_num


def _whole_rows(stream: Any, form: CsvFormat, delimiter: str) -> Iterator[int]:
    """Yield the line of each row after the header that has as many fields as there are columns."""
    rows = csv_lines(stream, form, delimiter)
    columns = len(next(rows, (0, ()))[1]) if form.header is True else len(form.header)
    return (line for line, fields in rows if len(fields) == columns)


def _is_object(line: str) -> bool:
    try:
        return bool(line.strip()) and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _within(lines: Iterator[int], seconds: float) -> Iterator[int]:
    """Yield lines until the time is over."""
    end = time.monotonic() + seconds
    for number, line in enumerate(lines):
        if number % _LOOK_EVERY == 0 and time.monotonic() > end:
            return
        yield line
