"""Delimited text in blocks, for recipes: rows that do not parse are counted and told by line."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from persia_cli.data.rowgroup import one_line
from persia_cli.errors import DataError

_BLOCK_BYTES = 1 << 23
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that did not parse."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class BadRows:
    """How many rows did not parse, the first of them, and how many are allowed."""

    allowed: int
    count: int = 0
    first: list[BadRow] = field(default_factory=list)

    def add(self, file: Path, line: int, reason: str) -> None:
        """Count a row."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(BadRow(file.name, line, reason))

    def raise_if_too_many(self) -> None:
        """Raise DataError with line numbers if more rows are bad than allowed."""
        if self.count <= self.allowed:
            return
        first = sorted(self.first, key=lambda bad: (bad.file, bad.line))
        rows = "\n".join(f"  {bad.file} line {bad.line}: {bad.reason}" for bad in first)
        more = f"\n  and {self.count - len(self.first)} more so far" if self.count > len(self.first) else ""
        raise DataError(
            f"{self.count} row{'s do' if self.count > 1 else ' does'} not parse, but at most {self.allowed} may fail; "
            f"correct the file or give a higher --max-bad-rows:\n{rows}{more}"
        )


@dataclass(slots=True)
class TextBlock:
    """Rows of a text file, columns as bytes with null for empty; `good` says which rows are still fit for use."""

    columns: Any
    good: NDArray[np.bool_]
    _file: "TextFile"
    _first_row: int

    def drop(self, rows: NDArray[np.bool_]) -> None:
        """Take rows out without counting them, e.g. blank lines."""
        self.good &= ~rows

    def reject(self, wrong: NDArray[np.bool_], reason: str) -> None:
        """Count those of the good rows that are wrong, and take them out."""
        wrong = wrong & self.good
        self.good &= ~wrong
        for row in np.flatnonzero(wrong).tolist():
            self._file.reject_row(self._first_row + row, reason)


class TextFile:
    """A text file without header, plain or .gz; bytes need not be UTF-8, lines may end in CRLF."""

    def __init__(self, path: Path, names: Sequence[str], delimiter: str, bad: BadRows, comment: str = "") -> None:
        """Lines that start with `comment`, if given, are skipped unless they have the right number of columns."""
        self.path = path
        self.bad = bad
        self._comment = comment
        self._names = list(names)
        self._delimiter = delimiter
        self._short_lines: list[int] = []

    def blocks(self, progress: Callable[[int], None]) -> Iterator[TextBlock]:
        """Yield blocks of rows with the right number of columns; `progress` is told bytes of the file read.

        Raises DataError where the file cannot be read, is damaged, or has too many bad rows.
        """
        first_row = 0
        try:
            with pa.OSFile(str(self.path)) as raw, self._stream(raw) as stream:
                for batch in csv.open_csv(stream, *self._options()):
                    self.bad.raise_if_too_many()
                    if batch.num_rows:
                        yield TextBlock(batch, np.ones(batch.num_rows, np.bool_), self, first_row)
                    first_row += batch.num_rows
                    progress(raw.tell())
        except (OSError, pa.ArrowException) as error:
            self.bad.raise_if_too_many()
            raise DataError(f"{self.path} cannot be read as text in columns: {one_line(error)}") from error
        self.bad.raise_if_too_many()

    def reject_row(self, row: int, reason: str) -> None:
        """Count row `row` of those with the right number of columns; its line is found among the others."""
        line = row + 1
        for short in self._short_lines:
            line += short <= line
        self.bad.add(self.path, line, reason)

    def _stream(self, raw: Any) -> Any:
        return pa.CompressedInputStream(raw, "gzip") if self.path.suffix == ".gz" else raw

    def _options(self) -> tuple[Any, Any, Any]:
        return (
            csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=self._names),
            csv.ParseOptions(
                delimiter=self._delimiter,
                quote_char=False,
                escape_char=False,
                ignore_empty_lines=False,
                invalid_row_handler=self._wrong_columns,
            ),
            csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(self._names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def _wrong_columns(self, row: Any) -> str:
        self._short_lines.append(row.number)
        if self._comment and row.text.startswith(self._comment):
            return "skip"
        plural = "" if row.actual_columns == 1 else "s"
        self.bad.add(self.path, row.number, f"{row.actual_columns} column{plural} where {row.expected_columns} belong")
        return "skip" if self.bad.count <= self.bad.allowed + _SHOWN else "error"
