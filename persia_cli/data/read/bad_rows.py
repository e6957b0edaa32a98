"""Rows that cannot be read: those of text that do not parse, and those with values that cannot be used.

Rows of text are counted, and reported by file and line; too many of them are an error. Rows with values that cannot be
used are left out as `dataset.max_bad_rows` allows. Such a row keeps its place in the order of samples, so that all
other rows stay in their steps and a resumed run continues as ever. A copy of a good row of the same row group, with
weight 0, takes its place: it changes neither the loss nor metrics. A row is identified by its number over all files, so
that it counts once, however often and by however many loaders it is read. In a prediction, where each row needs its
score, a bad row is an error."""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import PredictSplit
from persia_cli.data.read.slices import RowPiece
from persia_cli.errors import DataError

SHOWN = 20
"""Bad rows that are reported with their lines."""

Reject = Callable[[NDArray[np.int64], Sequence[str]], None]
"""Counts bad rows by the lines that they begin on; there is a reason for each, or one for all."""


def ignore(lines: NDArray[np.int64], reasons: Sequence[str]) -> None:
    """Count nothing, where rows are read that were read before."""


class BadRow(msgspec.Struct, frozen=True, order=True):
    """A row that did not parse."""

    file: str
    start: int
    """Byte from which its reader counted lines, 0 if from the beginning."""
    line: int
    """Number, from 1, of the line among those that begin at `start` or later."""
    reason: str

    def resolved(self) -> "BadRow":
        """Return the row with the file's name, and its line in the whole file; reads the file up to `start`."""
        before, left = min(self.start, 1), self.start - 1
        if self.start:
            with Path(self.file).open("rb", buffering=0) as file:
                while left > 0 and (block := file.read(min(left, 1 << 24))):
                    before, left = before + block.count(b"\n"), left - len(block)
        return BadRow(Path(self.file).name, 0, before + self.line, self.reason)

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(slots=True)
class BadRows:
    """The number of rows that did not parse, the first of them, and the number allowed; threads may share it."""

    allowed: int
    count: int = 0
    found: list[BadRow] = field(default_factory=list)
    """The first bad rows found so far, in the order of files and lines."""
    _lock: Lock = field(default_factory=Lock)

    def add(self, first: Iterable[BadRow], count: int) -> None:
        """Add `count` bad rows, of which `first` gives the first few."""
        with self._lock:
            self.count += count
            for row in first:
                insort(self.found, row)
            del self.found[SHOWN:]

    def reject(self, file: Path | str, start: int, lines: NDArray[np.int64], reasons: Sequence[str]) -> None:
        """Count rows of a file that is read from byte `start` on, as `Reject` does."""
        shown = lines[:SHOWN].tolist()
        causes = reasons[:SHOWN] if len(reasons) > 1 else [*reasons] * len(shown)
        self.add(
            (BadRow(str(file), start, *line_and_reason) for line_and_reason in zip(shown, causes, strict=True)),
            len(lines),
        )

    def first(self) -> tuple[BadRow, ...]:
        """Return the first bad rows with their lines in the whole file."""
        with self._lock:
            rows = list(self.found)
        return tuple(row.resolved() for row in rows)

    def raise_if_too_many(self) -> None:
        """Raise DataError with line numbers if more rows are bad than allowed."""
        if self.count <= self.allowed:
            return
        first, count = self.first(), self.count
        rows = "\n".join(f"  {bad.file} {bad}" for bad in first)
        more = f"\n  and {count - len(first)} more so far" if count > len(first) else ""
        raise DataError(
            f"{count} row{'s do' if count > 1 else ' does'} not parse, but at most {self.allowed} may fail; "
            f"correct the file or give a higher --max-bad-rows:\n{rows}{more}"
        )


Result = TypeVar("Result")


class BadValueError(DataError):
    """Values of a column that cannot be used; `rows` int64 are rows of the table that have one, but not always all."""

    def __init__(self, text: str, rows: NDArray[np.int64]) -> None:
        super().__init__(text)
        self.rows = rows


def bad_rows_allowed(dataset: ParquetDataset) -> int:
    """Return how many rows with bad values may be left out."""
    return 0 if isinstance(dataset.split, PredictSplit) else dataset.max_bad_rows


def leaving_out(
    piece: RowPiece, allowed: int, decode: Callable[[RowPiece], Result]
) -> tuple[Result, NDArray[np.int64], str]:
    """Decode a piece; return the result, the positions of its bad rows among the split's, and a sentence on the first.

    Good rows of the split stand in their places. Raise the BadValueError of `decode` if more than `allowed` rows are
    bad, or all.
    """
    bad, text, whole = np.empty(0, np.int64), "", piece.table
    split_rows = np.arange(whole.num_rows) if piece.rows is None else piece.rows
    while True:
        try:
            return decode(piece), np.flatnonzero(np.isin(split_rows, bad)), text
        except BadValueError as error:
            bad, text = np.union1d(bad, error.rows), text or str(error)
            good = np.setdiff1d(split_rows, bad)
            if bad.size > allowed or not good.size:
                raise
        rows = np.arange(whole.num_rows)
        rows[bad] = good[np.maximum(np.searchsorted(good, bad) - 1, 0)]
        piece = replace(piece, table=whole.take(rows))
