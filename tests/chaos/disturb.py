"""Faults of a running job: processes stop or slow down, connections break, disks fill up."""

import ctypes
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from persia_cli.engines.processes import PROC, RunningProcess
from persia_cli.engines.save_request import SaveRequest
from tests.conftest import poll_for
from tests.support.launched import Launched
from tests.support.replicas import events_of, replicas_of

RUNS_S, STANDS_S = 0.05, 0.2
"""Seconds for which a slow process runs, and stops, alternating."""
AGAIN_S = 0.05
"""Seconds between two cuts: processes connect again at once."""
TINY = 512
"""Size limit of files of a process whose disk is full."""
LIMIT_S = 120.0
WRITERS = ("embedding-server", "nn-worker")
"""Roles that write a checkpoint's files."""
PIDFD_GETFD = 438
"""Number of the system call, the same on all processors (include/uapi/asm-generic/unistd.h)."""
CREDENTIALS = struct.Struct("3i")
_LIBC = ctypes.CDLL(None, use_errno=True)


def disturb(job: Launched, kind: str, names: Sequence[str], for_s: float = 1.0) -> None:
    """Kill, stop, slow down or cut off replicas, or fill the disk; return when the fault is over."""
    poll_for(lambda: replicas_of(job.process.pid).keys() >= set(names), LIMIT_S, "the targets")
    running = replicas_of(job.process.pid)
    targets = [running[name] for name in names]
    match kind:
        case "kill":
            kill(job, targets)
        case "stop":
            stand_still(targets, for_s)
        case "slow":
            end = time.monotonic() + for_s
            while time.monotonic() < end:
                stand_still(targets, STANDS_S)
                time.sleep(RUNS_S)
        case "cut":
            end, broken = time.monotonic() + for_s, 0
            while time.monotonic() < end:
                broken += cut(*targets)
                time.sleep(AGAIN_S)
            assert broken, f"there is no connection between {' and '.join(names)}"
        case "fill-disk":
            since = time.time()
            with full_disk([process for name, process in running.items() if name.startswith(WRITERS)]):
                save(job, "save_failed", since)
            save(job, "saved", time.time())
        case _:
            raise AssertionError(kind)


def kill(job: Launched, targets: Sequence[RunningProcess]) -> None:
    """Kill processes at once, and wait until the job has recorded that it recovered."""
    since = time.time()
    for target in targets:
        target.send(signal.SIGKILL)
    poll_for(
        lambda: any(event["event"] == "recovered" and event["time"] > since for event in events_of(job.run_dir)),
        LIMIT_S, "the recovery",
    )  # fmt: skip


def stand_still(targets: Sequence[RunningProcess], for_s: float) -> None:
    try:
        for target in targets:
            target.send(signal.SIGSTOP)
        time.sleep(for_s)
    finally:
        for target in targets:
            target.send(signal.SIGCONT)


@contextmanager
def full_disk(writers: Sequence[RunningProcess]) -> Iterator[None]:
    """Limit the files of processes to their size in the block, as on a full disk.

    RLIMIT_FSIZE needs no rights and no separate file system. A write fails like one beyond a quota.
    """
    with ExitStack() as undone:
        for writer in writers:
            soft, hard = resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (TINY, -1))
            undone.callback(resource.prlimit, writer.pid, resource.RLIMIT_FSIZE, (soft, hard))
        yield


def save(job: Launched, outcome: str, since: float) -> None:
    """Request saves of the job until one has the given outcome."""
    request = SaveRequest(job.run_dir)

    def is_done() -> bool:
        nonlocal request
        request.poll()
        if any(event["event"] == outcome and event["time"] > since for event in events_of(job.run_dir)):
            return True
        if request.answer is not None:  # of another save
            request.close()
            request = SaveRequest(job.run_dir)
        return False

    try:
        poll_for(is_done, LIMIT_S, outcome)
    finally:
        request.close()


def cut(one: RunningProcess, other: RunningProcess) -> int:
    """Break all connections between two processes, Unix sockets and TCP alike; return their number.

    The test gets a second descriptor of a socket that a process has open (pidfd_getfd, Linux 5.6), and shuts it down.
    Both ends then see a broken network, without a proxy between them.
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
    here, there = _ends(connection)
    if connection.family == socket.AF_INET or there is None:
        return there is not None and (there, here) in ends
    [peer, _, _] = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return bool(peer == pid)


def _ends(connection: socket.socket) -> tuple[object, object]:
    """Return the addresses of both ends; None for the other end of an unconnected socket."""
    try:
        return connection.getsockname(), connection.getpeername()
    except OSError:
        return connection.getsockname(), None


@contextmanager
def _sockets_of(process: RunningProcess) -> Iterator[list[socket.socket]]:
    """Yield second descriptors of all stream sockets of a process; they are closed at the end."""
    with ExitStack() as opened:
        handle = os.pidfd_open(process.pid)
        opened.callback(os.close, handle)
        found = [_second(handle, number) for number in _numbers(process.pid)]
        yield [opened.enter_context(each) for each in found if each is not None]


def _numbers(pid: int) -> list[int]:
    """Return the descriptors of a process that are sockets."""
    numbers = []
    for file in (PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):
            if str(Path.readlink(file)).startswith("socket:"):
                numbers.append(int(file.name))
    return numbers


def _second(handle: int, number: int) -> socket.socket | None:
    """Return a second descriptor of a stream socket of another process; None if it is closed, or no stream socket."""
    file = _LIBC.syscall(PIDFD_GETFD, handle, number, 0)
    if file < 0:
        if ctypes.get_errno() in (1, 13):
            pytest.skip("this user may not open sockets of other processes (kernel.yama.ptrace_scope)")
        return None
    found = socket.socket(fileno=file)
    if found.type != socket.SOCK_STREAM or found.family not in (socket.AF_UNIX, socket.AF_INET):
        found.close()
        return None
    return found
