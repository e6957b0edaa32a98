"""Slices of row groups: consecutive rows of a split, read from front to back without holding whole row groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from persia_cli.control.position import SplitName
from persia_cli.data.read.order import BLOCK_BYTES, BLOCK_ROWS
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader, RowGroupStream
from persia_cli.data.read.splits import Selector

CHUNK_ROWS = 1 << 14
FEWEST_ROWS = 1 << 10
"""Limits of the rows that are read at a time of an open row group, which holds three times their bytes meanwhile."""


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Consecutive rows of a row group, from row `start` on, and those of them that are in the split."""

    group: RowGroup
    start: int
    table: Any
    rows: NDArray[np.int64] | None
    """Their numbers in the table, ascending, or None for all."""

    def __str__(self) -> str:
        return str(self.group)

    @property
    def size(self) -> int:
        """Number of the split's rows."""
        return self.table.num_rows if self.rows is None else self.rows.size

    def place_of(self, row: int) -> str:
        """Return the position of a row of the table as text."""
        return self.group.place_of(self.start + row)

    def cut(self, size: int) -> tuple["RowPiece", "RowPiece"]:
        """Return the first `size` rows of the split, 0 < size < self.size, and the others."""
        rows = self.rows
        edge = size if rows is None else int(rows[size - 1]) + 1
        first = RowPiece(self.group, self.start, self.table.slice(0, edge), None if rows is None else rows[:size])
        others = None if rows is None else rows[size:] - edge
        return first, RowPiece(self.group, self.start + edge, self.table.slice(edge), others)


class SliceReader:
    """Reads slices of row groups; a group that is read on from the end of its last slice is decoded once.

    For one thread at a time.
    """

    def __init__(
        self, filesystem: Any, selector: Selector, name: SplitName, columns: list[str], most_rows: int = CHUNK_ROWS
    ) -> None:
        """Read these columns, those that make the split among them; at most `most_rows` rows of a slice at a time."""
        self._filesystem, self._selector, self._name, self._columns = filesystem, selector, name, columns
        self._whole = RowGroupReader(filesystem)
        self._open: dict[int, _OpenGroup] = {}
        self._most_rows = min(most_rows, CHUNK_ROWS)

    def keep(self, groups: NDArray[np.int64]) -> None:
        """Close all row groups but these, and the last file, whose version is compared when it is opened again."""
        self._whole.close()
        for number in self._open.keys() - set(groups.tolist()):
            self._open.pop(number).close()

    def read(self, number: int, group: RowGroup, first: int, last: int, parts: int) -> Iterator[RowPiece]:
        """Yield rows [first, last) of the split's rows in row group `number`, in order; raises DataError.

        A group with `parts` = 1 is read as a whole unless it is large, another one in portions of about 1 / parts.
        """
        if parts == 1 and group.rows <= BLOCK_ROWS and group.nbytes <= BLOCK_BYTES:
            yield self._piece(group, 0, self._whole.read(group, self._columns))
            return
        current = self._open.get(number)
        if current is None or current.position > first:
            if current is not None:
                current.close()
            rows = min(max(-(-group.rows // parts), FEWEST_ROWS), self._most_rows)
            current = self._open[number] = _OpenGroup(RowGroupStream(self._filesystem, group, self._columns, rows))
        while current.position < last:
            piece = current.rest
            if piece is None:
                piece = self._piece(group, current.row, current.stream.read())
                current.row += piece.table.num_rows
            wanted = (first if current.position < first else last) - current.position
            piece, current.rest = piece.cut(wanted) if wanted < piece.size else (piece, None)
            is_wanted = current.position >= first
            current.position += piece.size
            if is_wanted and piece.size:
                yield piece

    def close(self) -> None:
        """Close all files."""
        self.keep(np.empty(0, np.int64))

    def _piece(self, group: RowGroup, start: int, table: Any) -> RowPiece:
        return RowPiece(group, start, table, self._selector.rows(self._name, group.first_row + start, table))


@dataclass(slots=True)
class _OpenGroup:
    stream: RowGroupStream
    row: int = 0
    """The row that the stream reads next."""
    position: int = 0
    """Rows of the split that were taken or passed over."""
    rest: RowPiece | None = None
    """Rows that were read, but not taken yet."""

    def close(self) -> None:
        self.stream.close()
