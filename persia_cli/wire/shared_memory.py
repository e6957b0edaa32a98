"""Loans: arrays that processes of one machine exchange in shared memory, while messages carry only their positions.

The sender of a message lends its arrays: it retains them until the receiver has released all of them and has cleared a
cell of the sender's segment. Nothing is copied, not even when a message is forwarded: the process in between borrows
and lends the same memory. A message that is sent again is a new loan. A message that arrives twice is dropped. After
LOST_S without an arrival the sender ends the loan. If there is no space, arrays travel in frames.

A segment is an anonymous file (memfd), so nothing is left behind however its processes end, and the size of /dev/shm
does not matter. Other processes open it through the creator's file descriptor in /proc. It is sealed against shrinking,
since a process that has mapped it would crash when it reads removed pages.
"""

import ctypes
import fcntl
import math
import mmap
import os
import re
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import WireError
from persia_cli.wire.message import BATCH_PART, Array, Shape

CELLS = 1024
"""Number of uint32 cells at the beginning of a segment; each shows if a loan of the segment's creator is active."""
DATA_START = CELLS * 4
"""Offset of the first block."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{16})")


class Segment:
    """A mapped segment; it stays mapped as long as an array on it exists.

    `name` is its name for other processes, `address` its address in this process, `cells` its uint32[CELLS].
    """

    def __init__(self, file: int, name: str) -> None:
        self.name = name
        self.nbytes = os.fstat(file).st_size
        # The system provides pages when they are first written.
        self._pages = np.frombuffer(mmap.mmap(file, self.nbytes), np.uint8)
        self.address: int = self._pages.ctypes.data
        self.cells = self._pages[:DATA_START].view(np.uint32)

    def bytes_from(self, offset: int, keeper: object) -> NDArray[np.uint8]:
        """Return the segment's memory from an offset on; this array and all its views keep `keeper` alive."""
        return np.asarray(_ArrayBase(self, offset, keeper))

    def offset_of(self, address: int) -> int | None:
        """Return the offset of an address in the segment, None if it is outside."""
        offset = address - self.address
        return offset if 0 <= offset < self.nbytes else None


class _ArrayBase:
    """The base object of an array: numpy takes the memory from it and keeps it alive as long as the array."""

    __slots__ = ("__array_interface__", "_keeper", "_segment")

    def __init__(self, segment: Segment, offset: int, keeper: object) -> None:
        data = (segment.address + offset, False)
        self.__array_interface__ = {"version": 3, "data": data, "shape": (segment.nbytes - offset,), "typestr": "|u1"}
        self._keeper = keeper
        self._segment = segment


def create_segment(nbytes: int) -> Segment:
    """Create a segment of this size; raise OSError if the system does not support it."""
    token = secrets.token_hex(8)
    file = os.memfd_create(f"persia-{token}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        name = f"{os.getpid()}/{file}/{token}"
        open_segment(name)  # if this fails, other processes could not open it either
        segment = Segment(file, name)
    except BaseException:
        os.close(file)
        raise
    # Other processes can open the segment as long as this file descriptor is open.
    weakref.finalize(segment, os.close, file)
    return segment


class GoneSegment(WireError):  # noqa: N818 - the name describes the segment
    """An error for the memory of a process that has ended."""


def open_segment(name: str) -> Segment:
    """Map the segment of this name of another process.

    Raise GoneSegment if there is no such process, and WireError if the segment cannot be reached or is invalid.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise WireError(f"{name[:60]!r} is not a valid name of shared memory")
    process, number, token = match.groups()
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if not Path(f"/proc/{process}").exists():
            raise GoneSegment(
                f"process {process}, whose shared memory a message names, has ended; if it runs in another container, "
                "set cluster.shared_memory=false"
            ) from None
        raise WireError(
            f"cannot reach the shared memory of process {process}: {error.strerror}; set cluster.shared_memory=false"
        ) from None
    try:
        if not str(Path(f"/proc/self/fd/{file}").readlink()).startswith(f"/memfd:persia-{token} "):
            raise WireError(f"the shared memory {name} of process {process} does not exist any more")
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(file).st_size < DATA_START:
            raise WireError(f"the shared memory {name} of process {process} is not sealed")
        return Segment(file, name)
    except OSError as error:
        raise WireError(f"cannot map the shared memory of process {process}: {error.strerror}") from None
    finally:
        os.close(file)


GRAIN = 64
"""Blocks begin on a cache line."""
LARGEST_RATIO = 2
"""Maximum ratio of a reused free block to the needed size, before unused memory is taken."""


class Arena:
    """The memory of one segment; any thread may ask for arrays and release them.

    Of the free blocks of a size, the one released last is reused first, since its memory is still in a cache.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._lock = threading.Lock()
        self._end = DATA_START
        self._free: dict[int, list[int]] = {}
        # Arrays are freed in any thread, even while this thread is within `empty`, since the garbage collector may run
        # there. So `__del__` must not take the lock. It only appends to this deque, which is atomic, and `empty`, which
        # holds the lock, collects the blocks.
        self._returned: deque[tuple[int, int]] = deque()
        self._merged = True
        """True if no two free blocks are adjacent."""

    @property
    def used(self) -> int:
        """Bytes up to the end of the last block: an upper bound of the memory that the arena takes."""
        return self._end

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any] | None:
        """Return an uninitialized array of shape and dtype, None if there is no space for it."""
        size = block_size(math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            while self._returned:
                returned, offset = self._returned.popleft()
                self._free.setdefault(returned, []).append(offset)
                self._merged = False
            taken = self._allocate(size)
        if taken is None:
            return None
        return np.ndarray(shape, dtype, self.segment.bytes_from(taken[1], _BlockOwner(self._returned, taken)))

    def _allocate(self, size: int) -> tuple[int, int] | None:
        """Return size and offset of a block for an array; merges free blocks if none is large enough."""
        taken = self._find(size)
        if taken is None and not self._merged:
            self._merge()
            taken = self._find(size)
        return taken

    def _find(self, size: int) -> tuple[int, int] | None:
        if self._free.get(size):
            return size, self._free[size].pop()
        larger = min((free for free, offsets in self._free.items() if free > size and offsets), default=None)
        if larger is not None and larger <= LARGEST_RATIO * size:
            return larger, self._free[larger].pop()
        if self._end + size <= self.segment.nbytes:
            self._end += size
            return size, self._end - size
        if larger is None:
            return None
        offset = self._free[larger].pop()
        self._free.setdefault(larger - size, []).append(offset + size)
        return size, offset

    def _merge(self) -> None:
        """Merge free blocks that are adjacent."""
        merged: list[tuple[int, int]] = []
        for offset, size in sorted((offset, size) for size, offsets in self._free.items() for offset in offsets):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        if merged and sum(merged[-1]) == self._end:
            self._end = merged.pop()[0]
        self._free = {}
        for offset, size in merged:
            self._free.setdefault(size, []).append(offset)
        self._merged = True


class _BlockOwner:
    """An object that the arrays on a block keep alive; it frees the block in the end."""

    __slots__ = ("_returned", "_taken")

    def __init__(self, returned: deque[tuple[int, int]], taken: tuple[int, int]) -> None:
        self._returned = returned
        self._taken = taken

    def __del__(self) -> None:
        self._returned.append(self._taken)


def block_size(nbytes: int) -> int:
    """Return the block size for so many bytes: one of eight between two powers of two, so that blocks are reused."""
    step = max(GRAIN, 1 << max(0, nbytes.bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


SEGMENT_BYTES = 1 << 30
"""Address space of a process's segment; memory is taken from the system as it is used."""
MIN_SHARED_BYTES = 4096
"""Smaller arrays travel in frames."""
SERIALS = 2**32 - 1
TAKEN = SERIALS
"""Value of a cell whose message has arrived."""
LOST_S = 60.0
"""Seconds after which a message is lost; one that arrives later is dropped, and its sender repeats it."""

Serial = Annotated[int, msgspec.Meta(ge=1, lt=TAKEN)]
BlockAddress = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=2**62)]]
"""The name of a segment and an offset in it."""


Whole = dict[str, NDArray[np.uint8]]
"""The memory of segments by name, in arrays that keep one loan alive."""


class Loan(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The part of a message that describes the arrays it lends."""

    lender: str
    """Name of the segment whose cell shows that the loan is active."""
    cell: Annotated[int, msgspec.Meta(ge=0, lt=CELLS)]
    serial: Serial
    """Value of the cell until the message arrives."""
    addresses: Annotated[list[BlockAddress | None], msgspec.Meta(max_length=BATCH_PART.arrays)]
    """Position of each array of the message; None for those that are in frames."""


class StaleLoan(WireError):  # noqa: N818 - the name describes the loan
    """A message that arrived before, whose memory may have been reused, or whose lender has ended."""


class _Lent(NamedTuple):
    borrower: str
    arrays: Sequence[Array]
    since_s: float


class SharedMemory:
    """The loans that one poll loop has given and taken. All methods but `empty` belong to the loop's thread.

    `no_room` counts messages with a large array that travelled in a frame for lack of space.
    """

    def __init__(self, segment: Segment, clock: Callable[[], float] = time.monotonic) -> None:
        self._segment, self._clock = segment, clock
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
        """Return an uninitialized array, in shared memory if there is space, so that a loan need not copy it.

        Any thread may call this.
        """
        array = self._arena.empty(shape, dtype)
        return np.empty(shape, dtype) if array is None else array

    def lend(self, arrays: Sequence[Array], borrower: str = "") -> Loan | None:
        """Lend the large arrays of a message, None if there are none; call `cancel` if it is not sent."""
        large = sum([array.nbytes >= MIN_SHARED_BYTES for array in arrays])
        if not large:
            return None
        self._collect()
        retained: list[Array] = []
        addresses = [self._address_of(array, retained) if self._cells else None for array in arrays]
        if len(retained) < large:
            self.no_room += 1
        if not retained:
            return None
        self._serial = self._serial % (TAKEN - 1) + 1
        cell = self._cells.pop()
        assert cell not in self._lent
        # No fence is needed: the message is sent after this store, through a queue and system calls that are barriers.
        self._segment.cells[cell] = self._serial
        self._lent[cell] = _Lent(borrower, retained, self._clock())
        return Loan(self._segment.name, cell, self._serial, addresses)

    def cancel(self, loan: Loan) -> None:
        """End a loan whose message was not sent."""
        self._segment.cells[loan.cell] = 0

    def _address_of(self, array: Array, retained: list[Array]) -> BlockAddress | None:
        """Return an array's position in shared memory, copied there if needed; None if small or without space."""
        if array.nbytes < MIN_SHARED_BYTES:
            return None
        if array.flags.c_contiguous and array.flags.writeable:
            address = _address(array)
            for segment in self._segments.values():
                if (offset := segment.offset_of(address)) is not None:
                    retained.append(array)
                    return segment.name, offset
        copy = self._arena.empty(array.shape, array.dtype)
        if copy is None:
            return None
        copy[...] = array
        retained.append(copy)
        offset = self._segment.offset_of(_address(copy))
        assert offset is not None
        return self._segment.name, offset

    def forget(self, borrowers: Container[str], pid: int | None) -> list[Array]:
        """End the loans of a dead process, and forget its segments; return the arrays that were lent to it.

        `borrowers` are the names under which it borrowed: a new process in its place must have others. `pid` is None
        if it has no segments here.

        Processes to which it passed arrays on may still read them: the caller retains the arrays until that is over.
        """
        self._collect()
        retained: list[Array] = []
        for cell in [cell for cell, loan in self._lent.items() if loan.borrower in borrowers]:
            self._segment.cells[cell] = 0
            retained += self._lent[cell].arrays
        self._collect()
        # They stay mapped as long as there are arrays on them.
        for name in [name for name in self._segments if name.startswith(f"{pid}/")]:
            del self._segments[name]
        return retained

    def _collect(self) -> None:
        """Release the arrays of loans that receivers have ended, and end those whose message is lost."""
        cells = self._segment.cells
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

    def borrow(self, loan: Loan) -> "Borrowed":
        """Take the loan of a message, for `view`; raise StaleLoan if it arrived before, WireError if it is invalid."""
        lender = self._segment_named(loan.lender)
        if lender is self._segment:
            raise WireError("a message lends memory that belongs to its receiver")
        if lender.cells[loan.cell] != loan.serial:
            raise StaleLoan("the message arrived before, or late, and its memory may have been reused")
        lender.cells[loan.cell] = TAKEN
        return Borrowed(lender, loan.cell)

    def view(
        self, address: BlockAddress, dtype: np.dtype[Any], shape: Shape, borrowed: "Borrowed", whole: Whole
    ) -> Array:
        """Return the array at an address, which keeps `borrowed` alive; raises WireError if there is no such memory.

        `whole` has the memory of segments that arrays of this message were found in, and gets that of others.
        """
        segment, offset = self._segment_named(address[0]), address[1]
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < DATA_START or offset + nbytes > segment.nbytes:
            raise WireError(f"{nbytes} bytes at {offset} are outside the shared memory {segment.name}")
        if segment.name not in whole:
            whole[segment.name] = segment.bytes_from(0, borrowed)
        return np.ndarray(shape, dtype, whole[segment.name], offset)

    def _segment_named(self, name: str) -> Segment:
        segment = self._segments.get(name)
        if segment is None:
            try:
                segment = self._segments[name] = open_segment(name)
            except GoneSegment as error:
                raise StaleLoan(str(error)) from None  # the sender repeats it in another way
        return segment


def _address(array: Array) -> int:
    """Return the address of a contiguous, writable array that is not empty; numpy's own ways take ten times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array.data))


class Borrowed:
    """An object that the arrays of a message keep alive; it ends the loan when the last of them is freed."""

    __slots__ = ("_cell", "_lender")

    def __init__(self, lender: Segment, cell: int) -> None:
        self._lender = lender
        self._cell = cell

    def __del__(self) -> None:
        # Handlers may hold views of arrays, even in other threads, so only reference counting finds the end of the last
        # one. One aligned 32-bit store needs no lock, so it may run in any thread; the lender, which polls the cell,
        # sees the old or the new value. All reads of the arrays come before it in program order, and it must not become
        # visible before them, or the lender would write over memory that is still read. x86-64 never lets a store pass
        # an earlier load. Processors of weaker order may, but only within the few hundred instructions that they have
        # in flight, and from the last read of an array to here the interpreter executes thousands.
        self._lender.cells[self._cell] = 0


def share_memory(nbytes: int = SEGMENT_BYTES) -> SharedMemory | None:
    """Return shared memory for one poll loop, None if the system does not support it."""
    try:
        return SharedMemory(create_segment(nbytes))
    except (OSError, WireError):
        return None
