"""The line of a text file that a row is on: found by reading the file again, for an error message."""

import csv
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from persia_cli.config.schema.csv_format import CsvFormat
from persia_cli.data.files import DataFile
from persia_cli.data.formats import Format
from persia_cli.data.text_stream import TextStream, as_text

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
