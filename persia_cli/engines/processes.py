"""Child processes, and running ones as Linux lists them (proc(5)); it imports little, since a guard needs it."""

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from persia_cli.errors import RoleError

PR_SET_PDEATHSIG = 1
PARENT = "PERSIA_PARENT"
"""Variable of the environment with the process with which a command ends: a program that uses the Python API."""
PROC = Path("/proc")


def python_module(module: str) -> list[str]:
    """Return the beginning of a command line that runs an installed module.

    Without `-P`, Python would search the working folder first, and a user's `typing.py`, or another checkout, would
    replace the installed module.
    """
    return [sys.executable, "-P", "-m", module]


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, process `parent`, dies; raises RoleError if it is dead.

    Linux, prctl(2): the signal is sent when the thread that started this process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise RoleError(f"the driver, process {parent}, has ended or did not start this process")


@dataclass(frozen=True)
class RunningProcess:
    """A process, which is the same one as long as its id and the time of its start are."""

    pid: int
    started: int
    """Clock ticks since the system started."""

    @property
    def lives(self) -> bool:
        """True until it has ended."""
        state = _state(self.pid)
        return state is not None and state[1] == self.started and state[0] not in "ZX"

    def send(self, number: signal.Signals) -> bool:
        """Send a signal, but not to a later process with the same number; returns False if it has ended.

        Raises PermissionError if it belongs to another user.
        """
        try:
            if not self.lives:
                return False
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def process_of(pid: int) -> RunningProcess | None:
    """Return a running process; None if there is none with this number."""
    state = _state(pid)
    return None if state is None else RunningProcess(pid, state[1])


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of a signal, which would end it otherwise."""
    try:
        lines = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def argv_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    state = _state(pid)
    return 0 if state is None else state[2]


def _state(pid: int) -> tuple[str, int, int] | None:
    """Return the state, the start and the parent of a process; None if it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may have spaces
    return fields[0], int(fields[19]), int(fields[1])
