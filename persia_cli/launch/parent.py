"""The bond of a process to its parent: it does not outlive it."""

import ctypes
import os
import signal

from persia_cli.errors import RoleError

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, process `parent`, dies; raises RoleError if it is dead.

    Linux, prctl(2): the signal is sent when the thread that started this process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise RoleError(f"the launcher, process {parent}, has ended or did not start this process")
