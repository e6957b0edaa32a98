"""Processes: the command that starts a module in a new one, and the signals that end a launcher."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def python_module(module: str) -> list[str]:
    """Return the beginning of a command line that runs an installed module.

    Without `-P`, Python would search the working folder first, and a user's `typing.py`, or another checkout, would
    replace the installed module.
    """
    return [sys.executable, "-P", "-m", module]


@contextmanager
def terminating_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP while the block runs; does nothing outside the main thread.

    If SIGHUP is ignored, it stays ignored: `nohup` lets a job outlive its terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
