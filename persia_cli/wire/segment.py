"""Memory that processes of one machine and user share: made by one, mapped by others, gone when the last of them ends.

A segment is an anonymous file (memfd), so that nothing is left behind whatever ends its processes, and /dev/shm may be
small. Others reach it through the maker's open file; it is sealed against shrinking, which would take memory from
under those that have mapped it.
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
"""Words at the beginning of a segment that tell which loans of its maker still run."""
DATA_START = CELLS * 4
"""Where blocks begin."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NAME = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,9})/([0-9a-f]{16})")


class Segment:
    """A mapped segment; stays mapped as long as an array on it lives.

    `name` is how others of this machine find it, `address` where it lies in this process, `cells` its uint32[CELLS].
    """

    def __init__(self, file: int, name: str) -> None:
        self.name = name
        self.nbytes = os.fstat(file).st_size
        # Pages are taken from the machine when they are first written.
        self._pages = np.frombuffer(mmap.mmap(file, self.nbytes), np.uint8)
        self.address: int = self._pages.ctypes.data
        self.cells = self._pages[:DATA_START].view(np.uint32)

    def array(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike, keeper: object) -> NDArray[Any]:
        """An array on the segment's memory; it, and every view of it, keeps `keeper` alive."""
        return np.asarray(_Place(self, self.address + offset, shape, np.dtype(dtype), keeper))

    def offset_of(self, address: int) -> int | None:
        """How far from the segment's beginning an address lies, None if it is outside."""
        offset = address - self.address
        return offset if 0 <= offset < self.nbytes else None


class _Place:
    """What numpy takes an array's memory from, and keeps as long as it uses it."""

    __slots__ = ("__array_interface__", "_keeper", "_segment")

    def __init__(
        self, segment: Segment, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], keeper: object
    ) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": dtype.str}
        self._keeper = keeper
        self._segment = segment


def create_segment(nbytes: int) -> Segment:
    """Make a segment of so many bytes; raises OSError where the system does not share memory in this way."""
    token = secrets.token_hex(8)
    file = os.memfd_create(f"persia-{token}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        name = f"{os.getpid()}/{file}/{token}"
        open_segment(name)  # where this fails, others could not come either
        segment = Segment(file, name)
    except BaseException:
        os.close(file)
        raise
    # Others may come as long as it is in use here.
    weakref.finalize(segment, os.close, file)
    return segment


def open_segment(name: str) -> Segment:
    """Map the segment that another process calls so; raises WireError if it is none, or out of reach."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise WireError(f"{name[:60]!r} is no name of shared memory")
    process, number, token = match.groups()
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WireError(
            f"cannot reach the shared memory of process {process}: {error.strerror}; set cluster.shared_memory=false"
        ) from None
    try:
        if not str(Path(f"/proc/self/fd/{file}").readlink()).startswith(f"/memfd:persia-{token} "):
            raise WireError(f"the shared memory {name} of process {process} is gone")
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(file).st_size < DATA_START:
            raise WireError(f"the shared memory {name} of process {process} is not sealed")
        return Segment(file, name)
    except OSError as error:
        raise WireError(f"cannot map the shared memory of process {process}: {error.strerror}") from None
    finally:
        os.close(file)
