"""Rows that do not parse: counted, reported by file and line; too many of them end a preparation."""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import msgspec

from persia_cli.errors import DataError

SHOWN = 20
"""Bad rows that are reported with their lines."""


class BadRow(msgspec.Struct, frozen=True):
    """A row that did not parse."""

    file: str
    line: int
    """Counted from 1."""
    reason: str


class Found(msgspec.Struct, frozen=True, order=True):
    """A bad row as its reader knows it; a reader may begin in the middle of a file."""

    file: str
    start: int
    """Byte from which the reader counts lines."""
    line: int
    """Number of the line among those that begin at `start` or later, counted from 0."""
    reason: str


@dataclass(slots=True)
class BadRows:
    """The number of rows that did not parse, the first of them, and the number allowed; threads may share it."""

    allowed: int
    count: int = 0
    found: list[Found] = field(default_factory=list)
    """The first bad rows found so far, in the order of files and lines."""
    _lock: Lock = field(default_factory=Lock)

    def add(self, first: Iterable[Found], count: int) -> None:
        """Add `count` bad rows, of which `first` gives the first few."""
        with self._lock:
            self.count += count
            for row in first:
                insort(self.found, row)
            del self.found[SHOWN:]

    def first(self) -> tuple[BadRow, ...]:
        """Return the first bad rows with their lines; reads the files again up to the place where each reader began."""
        with self._lock:
            found = list(self.found)
        rows: list[BadRow] = []
        file, start, before = "", 0, 0
        for row in found:
            if row.file != file:
                file, start, before = row.file, 0, 0
            if row.start > start:
                before += _line_ends(Path(file), max(start - 1, 0), row.start - 1) + (not start)
                start = row.start
            rows.append(BadRow(Path(file).name, before + row.line + 1, row.reason))
        return tuple(rows)

    def raise_if_too_many(self) -> None:
        """Raise DataError with line numbers if more rows are bad than allowed."""
        if self.count <= self.allowed:
            return
        first, count = self.first(), self.count
        rows = "\n".join(f"  {bad.file} line {bad.line}: {bad.reason}" for bad in first)
        more = f"\n  and {count - len(first)} more so far" if count > len(first) else ""
        raise DataError(
            f"{count} row{'s do' if count > 1 else ' does'} not parse, but at most {self.allowed} may fail; "
            f"correct the file or give a higher --max-bad-rows:\n{rows}{more}"
        )


def _line_ends(file: Path, start: int, stop: int) -> int:
    """Return the number of line ends in bytes [start, stop) of a file."""
    count = 0
    with file.open("rb", buffering=0) as source:
        source.seek(start)
        while start < stop and (block := source.read(min(stop - start, 1 << 24))):
            count += block.count(b"\n")
            start += len(block)
    return count
