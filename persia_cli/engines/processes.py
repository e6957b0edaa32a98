"""Child processes: the command that starts one, and its bond to its parent."""

import ctypes
import os
import signal
import sys

from persia_cli.errors import RoleError

PR_SET_PDEATHSIG = 1
PARENT = "PERSIA_PARENT"
"""Variable of the environment with the process with which a command ends: a program that uses the Python API."""


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
