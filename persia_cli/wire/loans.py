"""Loans: arrays that processes of one machine exchange in shared memory, while messages carry only their positions.

The sender of a message lends its arrays: it keeps them until the receiver has released all of them and has cleared a
cell of the sender's segment. Nothing is copied, not even when a message is forwarded: the process in between borrows
and lends the same memory. A message that is sent again is a new loan. A message that arrives twice is dropped. After
LOST_S without an arrival the sender ends the loan. If there is no room, arrays travel in frames.
"""

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from persia_cli.errors import WireError
from persia_cli.wire.arena import Arena
from persia_cli.wire.arrays import Array, Shape
from persia_cli.wire.parts import BATCH_PART
from persia_cli.wire.segment import CELLS, DATA_START, GoneSegment, Segment, create_segment, open_segment

SEGMENT_BYTES = 1 << 30
"""Address space of a process's segment; memory is taken from the system as it is used."""
LEAST_BYTES = 4096
"""Smaller arrays travel in frames."""
SERIALS = 2**32 - 1
TAKEN = SERIALS
"""Value of a cell whose message has arrived."""
LOST_S = 60.0
"""Seconds after which a message is lost; one that arrives all the same is dropped, and its sender repeats it."""

Word = Annotated[int, msgspec.Meta(ge=1, lt=TAKEN)]
Place = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**62)]]
"""The name of a segment and an offset in it."""


class Loan(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The part of a message that describes the arrays it lends."""

    lender: str
    """Name of the segment whose cell shows that the loan is active."""
    cell: Annotated[int, msgspec.Meta(ge=0, lt=CELLS)]
    serial: Word
    """Value of the cell until the message arrives."""
    places: Annotated[list[Place | None], msgspec.Meta(max_length=BATCH_PART.arrays)]
    """Position of each array of the message; None for those that are in frames."""


class StaleLoan(WireError):  # noqa: N818 - the name says what it is
    """A message that arrived before, whose memory may be in other use by now, or whose lender has ended."""


class _Lent(NamedTuple):
    borrower: str
    arrays: Sequence[Array]
    since_s: float


class SharedMemory:
    """The loans that one poll loop has given and taken. All methods but `empty` belong to the loop's thread.

    `no_room` counts messages with a large array that travelled in a frame since there was no room for it.
    """

    def __init__(self, segment: Segment, clock: Callable[[], float] = time.monotonic) -> None:
        self._own, self._clock = segment, clock
        self._arena = Arena(segment)
        self._segments = {segment.name: segment}
        self._cells = list(range(CELLS))
        self._lent: dict[int, _Lent] = {}
        """cell -> the loan, the oldest first."""
        self._serial = 0
        self.no_room = 0

    @property
    def lent(self) -> int:
        """Number of active loans."""
        self._collect()
        return len(self._lent)

    @property
    def nbytes(self) -> int:
        """Largest number of bytes that this loop's own arrays have taken so far."""
        return self._arena.used

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialized array, in shared memory if there is room, so that a loan need not copy it.

        Any thread may call this.
        """
        array = self._arena.empty(shape, dtype)
        return np.empty(shape, dtype) if array is None else array

    def lend(self, arrays: Sequence[Array], borrower: str = "") -> Loan | None:
        """Lend the large arrays of a message, None if there are none; call `take_back` if it is not sent after all."""
        if not any(array.nbytes >= LEAST_BYTES for array in arrays):
            return None
        self._collect()
        kept: list[Array] = []
        places = [self._place(array, kept) if self._cells else None for array in arrays]
        if len(kept) < sum(array.nbytes >= LEAST_BYTES for array in arrays):
            self.no_room += 1
        if not kept:
            return None
        self._serial = self._serial % (TAKEN - 1) + 1
        cell = self._cells.pop()
        # No fence is needed: the message is sent after this store, through a queue and system calls that are barriers.
        self._own.cells[cell] = self._serial
        self._lent[cell] = _Lent(borrower, kept, self._clock())
        return Loan(self._own.name, cell, self._serial, places)

    def take_back(self, loan: Loan) -> None:
        """End a loan whose message was not sent."""
        self._own.cells[loan.cell] = 0

    def _place(self, array: Array, kept: list[Array]) -> Place | None:
        """Return an array's position in shared memory, to which it is copied if need be; None if small or no room."""
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

    def forget(self, borrowers: Container[str], pid: int | None) -> list[Array]:
        """End the loans of a process that has died, and forget its segments; return the arrays that were lent to it.

        `borrowers` are the names under which it borrowed: a new process in its place must have others. `pid` is None
        if it has no segments here.

        Whoever got an array from it in turn may still be reading: the caller keeps them until nobody can.
        """
        self._collect()
        kept: list[Array] = []
        for cell in [cell for cell, loan in self._lent.items() if loan.borrower in borrowers]:
            self._own.cells[cell] = 0
            kept += self._lent[cell].arrays
        self._collect()
        # They stay mapped as long as there are arrays on them.
        for name in [name for name in self._segments if name.startswith(f"{pid}/")]:
            del self._segments[name]
        return kept

    def _collect(self) -> None:
        """Release the arrays of loans that receivers have ended, and end those whose message is lost."""
        cells = self._own.cells
        for cell in [cell for cell in self._lent if not cells[cell]]:
            del self._lent[cell]
            self._cells.append(cell)
        oldest_s = self._clock() - LOST_S
        for cell, loan in self._lent.items():
            if loan.since_s > oldest_s:
                break
            if cells[cell] != TAKEN:
                # The arrays stay until the next call, for a receiver that takes the loan at this very moment.
                cells[cell] = 0

    def borrow(self, loan: Loan) -> "LentArrays":
        """Return the arrays that a message lends; raises StaleLoan if it arrived before, WireError if it cannot be."""
        lender = self._segment(loan.lender)
        if lender is self._own:
            raise WireError("a message lends memory that belongs to its receiver")
        if lender.cells[loan.cell] != loan.serial:
            raise StaleLoan("the message arrived before, or late, and its memory may have been reused")
        lender.cells[loan.cell] = TAKEN
        return LentArrays(self, loan, _Borrowed(lender, loan.cell))

    def view(self, place: Place, dtype: np.dtype[Any], shape: Shape, borrowed: "_Borrowed") -> Array:
        """Return the array at a place, which keeps `borrowed` alive; raises WireError if there is no such memory."""
        segment, offset = self._segment(place[0]), place[1]
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < DATA_START or offset + nbytes > segment.nbytes:
            raise WireError(f"{nbytes} bytes at {offset} are outside the shared memory {segment.name}")
        return segment.array(offset, shape, dtype, borrowed)

    def _segment(self, name: str) -> Segment:
        segment = self._segments.get(name)
        if segment is None:
            try:
                segment = self._segments[name] = open_segment(name)
            except GoneSegment as error:
                raise StaleLoan(str(error)) from None  # who sent it hears of the death too, and sends it otherwise
        return segment


class LentArrays:
    """The arrays that a message lends, read one after the other."""

    def __init__(self, memory: SharedMemory, loan: Loan, borrowed: "_Borrowed") -> None:
        self._memory = memory
        self._places: Iterator[Place | None] = iter(loan.places)
        self.left = len(loan.places)
        """Number of arrays that have not been read."""
        self._borrowed = borrowed

    def next(self, dtype: np.dtype[Any], shape: Shape) -> Array | None:
        """Return the next array, None if it is in a frame; raises WireError if there is none, or no such memory."""
        if not self.left:
            raise WireError("the message declares more arrays than its loan has")
        self.left -= 1
        place = next(self._places)
        return None if place is None else self._memory.view(place, dtype, shape, self._borrowed)


class _Borrowed:
    """An object that the arrays of a message keep alive; it ends the loan when the last of them is gone."""

    __slots__ = ("_cell", "_lender")

    def __init__(self, lender: Segment, cell: int) -> None:
        self._lender = lender
        self._cell = cell

    def __del__(self) -> None:
        # Handlers may keep views of arrays, even in other threads, so only reference counting knows when the last one
        # is gone. One aligned 32-bit store needs no lock, so it may run in any thread; the lender, which polls the
        # cell, sees the old or the new value. All reads of the arrays come before it in program order, and it must not
        # become visible before them, or the lender would write over what is still read. x86-64 never lets a store pass
        # an earlier load. Processors of weaker order may, but only within the few hundred instructions that they have
        # in flight, and from the last read of an array to here the interpreter executes thousands.
        self._lender.cells[self._cell] = 0


def share_memory(nbytes: int = SEGMENT_BYTES) -> SharedMemory | None:
    """Return shared memory for one poll loop, None if the system does not support it."""
    try:
        return SharedMemory(create_segment(nbytes))
    except (OSError, WireError):
        return None
