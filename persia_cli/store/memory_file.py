"""Memory of a replica in an anonymous file, which outlives the process that writes it.

The parent of the replica creates the file (`new_file`) and passes its descriptor on by inheritance, so that nothing is
left behind when both have ended. The file is sparse: the system provides pages as they are written.
"""

import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from persia_cli.errors import ConfigError, MemoryFileError, RoleError
from persia_cli.kernels.toolchain.cache import cache_folder
from persia_cli.kernels.toolchain.memory import CACHE_LINE, COLLAPSE, HUGE_PAGE, zeros

Memory = Callable[[int, DTypeLike], NDArray[Any]]
"""A function that returns so many elements of memory, which are zero at first."""

log = logging.getLogger(__name__)

NO_EXECUTION = 8
"""MFD_NOEXEC_SEAL: some systems refuse files without it (vm.memfd_noexec), older ones do not support it."""
MOMENTARY = (errno.EAGAIN, errno.EBUSY, errno.ENOMEM)
"""Errors of madvise for pages that are in use at that moment, or without a huge page for them: they stay small."""
MAP_FIXED, RESERVED = 0x10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""Flags of mmap; the last one is MAP_NORESERVE."""
MAGIC = b"persia memory 1\n"
EMPTY, LOADING, SERVING = 0, 1, 2
"""States of a file: nothing in it, rows are being loaded, rows are whole except for the change in its journal."""
HEADER = 4096
"""Bytes before the first array: MAGIC, the state (uint64), and the SHA-256 of the identity of the arrays."""
LOAD = "load its content from a checkpoint"


def new_file(name: str) -> int:
    """Return the descriptor of an empty anonymous file, for `MemoryFile` here or in a process that inherits it.

    Raise RoleError if the system does not provide one.
    """
    with suppress(OSError):
        return os.memfd_create(name, os.MFD_CLOEXEC | NO_EXECUTION)
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise RoleError(
            f"the system provides no file in memory for {name} (memfd_create: "
            f"{error.strerror}): allow this call, or raise the number of files that a process may open (ulimit -n)"
        ) from error


class PrivateMemory:
    """Memory that ends with this process, with the interface of `MemoryFile`."""

    outlives = False
    state = EMPTY
    array = staticmethod(zeros)

    def back(self, array: NDArray[Any], start: int, stop: int) -> None:
        """Do nothing: large arrays lie in huge pages from the beginning."""


PRIVATE = PrivateMemory()


class MemoryFile:
    """Arrays in an anonymous file, which only one process at a time can open.

    `identity` describes them; the sources of kernels are added to it. Arrays are allocated in the order of the calls,
    so that a process with the same calls gets those of its predecessor.
    """

    outlives = True
    """Another process may continue the memory when this one has ended."""

    def __init__(self, file: int, identity: str, nbytes: int, keep: bool) -> None:
        """Map `nbytes` of the file; `keep` its content, or begin with zeros.

        Raise MemoryFileError if another process has it open, or, with `keep`, if it is of other arrays or not whole;
        ConfigError if this process may not reserve as much address space.
        """
        # Inherited descriptors share their locks; this one is opened anew, so its lock is this process's.
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self._file)
        of = hashlib.sha256(f"{cache_folder().name} {nbytes} {identity}".encode()).digest()
        try:
            self._claim(of, nbytes, keep)
            self._pages = _mapped(self._file, nbytes)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise ConfigError(
                    f"the system does not let this process reserve {nbytes:,} bytes in a file in memory "
                    f"({error.strerror}): give embedding.memory or embedding.capacity a lower value, or raise the "
                    "limits of the process (ulimit -v, ulimit -f)"
                ) from error
            raise
        self._state = self._pages[16:24].view(np.uint64)
        self._end = HEADER
        self.can_back = True
        """False once the system has refused to move memory into huge pages."""

    def close(self) -> None:
        """Let other processes open the file; the arrays must not be used any more."""
        self._closing()

    def _claim(self, of: bytes, nbytes: int, keep: bool) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MemoryFileError("another process still uses this memory") from error
        if keep:
            self._check(os.pread(self._file, HEADER, 0), of)
        else:
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, nbytes)
            os.pwrite(self._file, of, 64)
            os.pwrite(self._file, MAGIC, 0)

    @staticmethod
    def _check(header: bytes, of: bytes) -> None:
        """Raise MemoryFileError unless a file's first bytes mean that it is whole, and of the arrays with this hash."""
        if header[:16] != MAGIC:
            raise MemoryFileError(f"there is no memory of an earlier process: {LOAD}")
        if header[64:96] != of:
            raise MemoryFileError(
                f"the memory of the earlier process has another layout or was written by another version: {LOAD}"
            )
        if int.from_bytes(header[16:24], "little") != SERVING:
            raise MemoryFileError(f"the earlier process ended before its memory was whole: {LOAD}")

    @property
    def state(self) -> int:
        """EMPTY, LOADING or SERVING."""
        return int(self._state[0])

    @state.setter
    def state(self, state: int) -> None:
        self._state[0] = state

    def array(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return the next `size` elements of the file: zeros, or the values of an earlier process."""
        nbytes = size * np.dtype(dtype).itemsize
        boundary = HUGE_PAGE if nbytes >= HUGE_PAGE else CACHE_LINE
        start = -(-self._end // boundary) * boundary
        self._end = start + nbytes
        assert self._end <= self._pages.size, f"{self._end} bytes of {self._pages.size}"
        return self._pages[start : self._end].view(dtype)

    def back(self, array: NDArray[Any], start: int, stop: int) -> None:
        """Move bytes [start, stop) of an array into huge pages, as far as whole ones fit and the system supports it.

        An array of a file gets none by itself: `shmem_enabled` is `never` on most systems.
        """
        first, base = array.ctypes.data, self._pages.ctypes.data
        begin = -(-(first + start) // HUGE_PAGE) * HUGE_PAGE
        size = (first + stop - begin) // HUGE_PAGE * HUGE_PAGE
        if self.can_back and size > 0:
            # The system refuses huge pages of which no small one is present.
            for offset in range(begin - base, begin - base + size, HUGE_PAGE):
                self._pages[offset] = self._pages[offset]
            if _libc().madvise(begin, size, COLLAPSE) != 0 and ctypes.get_errno() not in MOMENTARY:
                self.can_back = False
                log.warning(
                    "rows are in small pages, so training may take longer: the system refuses huge ones for files in "
                    "memory (madvise: %s); Linux 6.1 and later have them",
                    os.strerror(ctypes.get_errno()),
                )


def _libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _mapped(file: int, nbytes: int) -> NDArray[np.uint8]:
    """Map a file at an address where it can lie in huge pages; it stays mapped as long as an array on it exists.

    Python's mmap cannot choose the address. Raise OSError if this process may not reserve as much address space.
    """
    libc, failed = _libc(), ctypes.c_void_p(-1).value
    reserved_bytes = nbytes + HUGE_PAGE
    reserved = libc.mmap(None, reserved_bytes, 0, RESERVED, -1, 0)
    if reserved == failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    start = -(-reserved // HUGE_PAGE) * HUGE_PAGE
    if libc.mmap(start, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, 0) == failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    block = (ctypes.c_uint8 * nbytes).from_address(start)
    weakref.finalize(block, libc.munmap, reserved, reserved_bytes)
    return np.frombuffer(memoryview(block), np.uint8)
