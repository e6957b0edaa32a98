"""Connections between two processes, cut from outside: Unix sockets and TCP alike.

The drill gets a second descriptor of a socket that a process has open (pidfd_getfd, Linux 5.6), and shuts it down.
Both ends then see what they see when a network breaks. No proxy has to stand between them, so a job that already runs
can be disturbed too.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from persia_cli.errors import UserError
from persia_cli.launch.running import PROC, RunningProcess

PIDFD_GETFD = 438
"""Number of the system call, the same on all processors (include/uapi/asm-generic/unistd.h)."""
CREDENTIALS = struct.Struct("3i")
_LIBC = ctypes.CDLL(None, use_errno=True)


def cut(one: RunningProcess, other: RunningProcess) -> int:
    """Break all connections between two processes; return how many there were.

    Raises UserError if this user may not.
    """
    broken = 0
    with _sockets_of(one) as ours, _sockets_of(other) as theirs:
        ends = {_ends(each) for each in theirs if each.family == socket.AF_INET}
        for each in ours:
            if _leads_to(each, other.pid, ends):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                    broken += 1
    return broken


def _leads_to(connection: socket.socket, pid: int, ends: set[tuple[object, object]]) -> bool:
    if connection.family == socket.AF_UNIX:
        return _peer(connection) == pid
    here, there = _ends(connection)
    return there is not None and (there, here) in ends


def _ends(connection: socket.socket) -> tuple[object, object]:
    """Return the addresses of both ends; None for the other one of a socket that is not connected."""
    try:
        return connection.getsockname(), connection.getpeername()
    except OSError:
        return connection.getsockname(), None


def _peer(connection: socket.socket) -> int:
    """Return the process at the other end of a Unix socket, which listened or connected; 0 if there is none."""
    try:
        connection.getpeername()
    except OSError:
        return 0
    [pid, _, _] = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(pid)


@contextmanager
def _sockets_of(process: RunningProcess) -> Iterator[list[socket.socket]]:
    """Yield second descriptors of all stream sockets of a process; they are closed in the end."""
    found: list[socket.socket] = []
    try:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
            try:
                found += [each for number in _numbers(process.pid) if (each := _second(handle, number)) is not None]
            finally:
                os.close(handle)
        yield found
    finally:
        for each in found:
            each.close()


def _numbers(pid: int) -> list[int]:
    """Return the descriptors of a process that are sockets."""
    numbers = []
    with suppress(OSError):
        for file in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if str(Path.readlink(file)).startswith("socket:"):
                    numbers.append(int(file.name))
    return numbers


def _second(handle: int, number: int) -> socket.socket | None:
    """Return a second descriptor of a stream socket of another process; None if it is gone, or something else."""
    file = _LIBC.syscall(PIDFD_GETFD, handle, number, 0)
    if file < 0:
        code = ctypes.get_errno()
        if isinstance(error := OSError(code, os.strerror(code)), PermissionError):
            raise UserError(
                "this user may not open the sockets of the job's processes, so no connection can be cut; run the drill "
                "on a fresh job, or as root, or set kernel.yama.ptrace_scope to 0"
            ) from error
        return None
    found = socket.socket(fileno=file)
    if found.type != socket.SOCK_STREAM or found.family not in (socket.AF_UNIX, socket.AF_INET):
        found.close()
        return None
    return found
