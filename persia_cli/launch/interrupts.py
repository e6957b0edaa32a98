"""The handling of signals in a launcher: SIGTERM and SIGHUP (the terminal is closed) end it as Ctrl-C does."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
