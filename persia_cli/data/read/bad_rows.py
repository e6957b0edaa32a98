"""Rows of text files that do not parse: counted, reported by file and line; too many of them are an error."""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

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
