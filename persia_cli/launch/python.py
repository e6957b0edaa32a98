"""The command that runs a module of this installation in a new process."""

import sys


def python_module(module: str) -> list[str]:
    """Return the beginning of a command line that runs an installed module.

    Without `-P`, Python would search the working folder first, and a user's `typing.py`, or another checkout, would
    replace the installed module.
    """
    return [sys.executable, "-P", "-m", module]
