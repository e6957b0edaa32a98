"""Arrays that pass between processes of one machine in shared memory: messages carry where they lie.

The sender of a message lends its arrays: it keeps them until the receiver has let go of every one, which the receiver
tells by clearing a cell of the sender's segment. Nothing is copied, not even where a message is passed on: the one in
between borrows and lends the same memory. A message that is sent again is a loan of its own; one that comes twice is
passed over; one that never arrives leaves its memory taken. Where there is no room, arrays travel in frames.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import WireError
from persia_cli.wire.arena import Arena
from persia_cli.wire.segment import CELLS, DATA_START, Segment, create_segment, open_segment

SEGMENT_BYTES = 1 << 30
"""Address space of a process's segment; memory is taken from the machine as it is used."""
LEAST_BYTES = 4096
"""Smaller arrays travel in frames."""
SERIALS = 2**32

Array = NDArray[Any]
Word = Annotated[int, msgspec.Meta(ge=0, le=SERIALS - 1)]
Place = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**62)]]
"""Name of a segment, and offset in it."""


class Loan(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """What a message says of the arrays that it lends."""

    lender: str
    """The segment whose cell tells that the loan runs."""
    cell: Annotated[int, msgspec.Meta(ge=0, lt=CELLS)]
    serial: Word
    """What the cell holds until the receiver clears it; never 0."""
    places: list[Place | None]
    """Where each array of the message lies; None for those that come in frames."""


class StaleLoan(WireError):  # noqa: N818 - it says what it is
    """A message that came before: its memory may be another's by now."""


class SharedMemory:
    """What one poll loop lends and has borrowed. All methods but `empty` belong to the loop's thread.

    `no_room` counts messages of which a large array travelled in a frame because there was no room for it.
    """

    def __init__(self, segment: Segment) -> None:
        self._own = segment
        self._arena = Arena(segment)
        self._segments = {segment.name: segment}
        self._cells = list(range(CELLS))
        self._lent: dict[int, Sequence[Array]] = {}
        self._serial = 0
        self.no_room = 0
        self._borrowed: dict[tuple[str, int], int] = {}
        """The last loan that was taken of each lender's cell."""

    @property
    def lent(self) -> int:
        """Loans that still run."""
        self._collect()
        return len(self._lent)

    @property
    def nbytes(self) -> int:
        """Memory that this loop's own arrays take, or took at most."""
        return self._arena.used

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array with any content, where it need not be copied to be lent, if there is room; for any thread."""
        array = self._arena.empty(shape, dtype)
        return np.empty(shape, dtype) if array is None else array

    def lend(self, arrays: Sequence[Array]) -> Loan | None:
        """Lend what is large of a message's arrays, None if nothing is; `take_back` what is not sent after all."""
        if not any(array.nbytes >= LEAST_BYTES for array in arrays):
            return None
        self._collect()
        kept: list[Array] = []
        places = [self._place(array, kept) if self._cells else None for array in arrays]
        if len(kept) < sum(array.nbytes >= LEAST_BYTES for array in arrays):
            self.no_room += 1
        if not kept:
            return None
        self._serial = self._serial % (SERIALS - 1) + 1
        cell = self._cells.pop()
        self._own.cells[cell] = self._serial
        self._lent[cell] = kept
        return Loan(self._own.name, cell, self._serial, places)

    def take_back(self, loan: Loan) -> None:
        """End a loan that nobody has been told of."""
        self._own.cells[loan.cell] = 0

    def _place(self, array: Array, kept: list[Array]) -> Place | None:
        """Where an array lies in shared memory, put there if need be; None if it is small or there is no room."""
        if array.nbytes < LEAST_BYTES:
            return None
        if array.flags.c_contiguous:
            address: int = array.__array_interface__["data"][0]
            for segment in self._segments.values():
                if (offset := segment.offset_of(address)) is not None:
                    kept.append(array)
                    return segment.name, offset
        copy = self._arena.empty(array.shape, array.dtype)
        if copy is None:
            return None
        copy[...] = array
        kept.append(copy)
        offset = self._own.offset_of(copy.__array_interface__["data"][0])
        assert offset is not None
        return self._own.name, offset

    def _collect(self) -> None:
        """Let go of what receivers have let go of."""
        cells = self._own.cells
        for cell in [cell for cell in self._lent if not cells[cell]]:
            del self._lent[cell]
            self._cells.append(cell)

    def borrow(self, loan: Loan, heads: Sequence[tuple[str, tuple[int, ...]]]) -> list[Array | None]:
        """The arrays of dtype and shape that a message lends, None for those in frames.

        Raises StaleLoan if the message came before, WireError if there is no such memory.
        """
        if len(loan.places) != len(heads):
            raise WireError(f"a message of {len(heads)} arrays lends {len(loan.places)}")
        lender, key = self._segment(loan.lender), (loan.lender, loan.cell)
        if lender is self._own:
            raise WireError("a message lends memory of the one it came to")
        if loan.serial in (0, self._borrowed.get(key)) or lender.cells[loan.cell] != loan.serial:
            raise StaleLoan("a message came again, and its memory may have been given back")
        self._borrowed[key] = loan.serial
        borrowed = _Borrowed(lender, loan.cell)
        return [
            None if place is None else self._view(place, dtype, shape, borrowed)
            for place, (dtype, shape) in zip(loan.places, heads, strict=True)
        ]

    def _view(self, place: Place, dtype: str, shape: tuple[int, ...], borrowed: "_Borrowed") -> Array:
        segment, offset = self._segment(place[0]), place[1]
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if offset < DATA_START or offset + nbytes > segment.nbytes:
            raise WireError(f"{nbytes} bytes at {offset} are beyond the shared memory {segment.name}")
        return segment.array(offset, shape, dtype, borrowed)

    def _segment(self, name: str) -> Segment:
        segment = self._segments.get(name)
        if segment is None:
            segment = self._segments[name] = open_segment(name)
        return segment


class _Borrowed:
    """Lives as long as an array of a message does; tells the lender when the last is gone."""

    __slots__ = ("_cell", "_lender")

    def __init__(self, lender: Segment, cell: int) -> None:
        self._lender = lender
        self._cell = cell

    def __del__(self) -> None:
        self._lender.cells[self._cell] = 0


def share_memory(nbytes: int = SEGMENT_BYTES) -> SharedMemory | None:
    """Shared memory for one poll loop, None where the system has none of the kind."""
    try:
        return SharedMemory(create_segment(nbytes))
    except (OSError, WireError):
        return None
