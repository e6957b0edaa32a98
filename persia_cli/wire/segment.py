"""Memory segments that processes of one machine and one user share.

A segment is an anonymous file (memfd), so nothing is left behind however its processes end, and the size of /dev/shm
does not matter. Other processes open it through the creator's file descriptor in /proc. It is sealed against shrinking,
since a process that has mapped it would crash when it reads pages that are gone.
"""

import fcntl
import mmap
import os
import re
import secrets
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import WireError

CELLS = 1024
"""Number of uint32 words at the beginning of a segment; each shows if a loan of the segment's creator is active."""
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

    def array(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike, keeper: object) -> NDArray[Any]:
        """Return an array on the segment's memory; the array and all its views keep `keeper` alive."""
        return np.asarray(_ArrayBase(self, self.address + offset, shape, np.dtype(dtype), keeper))

    def offset_of(self, address: int) -> int | None:
        """Return the offset of an address in the segment, None if it is outside."""
        offset = address - self.address
        return offset if 0 <= offset < self.nbytes else None


class _ArrayBase:
    """The base object of an array: numpy takes the memory from it and keeps it alive as long as the array."""

    __slots__ = ("__array_interface__", "_keeper", "_segment")

    def __init__(
        self, segment: Segment, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], keeper: object
    ) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": dtype.str}
        self._keeper = keeper
        self._segment = segment


def create_segment(nbytes: int) -> Segment:
    """Create a segment of so many bytes; raises OSError if the system does not support it."""
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


class GoneSegment(WireError):  # noqa: N818 - the name says what it is
    """An error for the memory of a process that has ended."""


def open_segment(name: str) -> Segment:
    """Map the segment of this name of another process.

    Raises GoneSegment if there is no such process, and WireError if the segment cannot be reached or is none.
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
