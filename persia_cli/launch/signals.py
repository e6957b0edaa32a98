"""Signals that end a job after its model is saved, as launchers and roles take them."""

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from persia_cli.errors import PreemptedError

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that save the model and end the job."""


@contextmanager
def end_on_signals(say: Callable[[str], None]) -> Iterator[None]:
    """End this process with a sentence when a signal comes in the block, before its job begins or after its end.

    Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        say(f"{signal.Signals(number).name}: no job is running; the same command goes on")
        sys.exit(PreemptedError.exit_code)

    before = {number: signal.signal(number, end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class PreemptedNow(KeyboardInterrupt):
    """A signal that ends a job before it trains, so that there is nothing to save."""


class JobSignals:
    """A launcher's handler of the signals that end its job, as a context; does nothing outside the main thread.

    SIGTERM, SIGUSR1 and SIGHUP end a job once its model is saved, and raise PreemptedNow where training has not begun.
    Repeats change nothing. SIGHUP stays ignored if it was: `nohup` lets a job outlive its terminal.
    """

    def __init__(self) -> None:
        self.trains = False
        """True while there is a coordinator that can save."""
        self.name = ""
        """The signal that ends the job, the first of them; empty if none has come."""

    @contextmanager
    def handled(self) -> Iterator["JobSignals"]:
        """Handle the signals while the block runs."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [*ENDING_SIGNALS]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _drop_terminal()
        if self.name:
            return
        self.name = signal.Signals(number).name
        if not self.trains:
            raise PreemptedNow(self.name)


def _drop_terminal() -> None:
    """Send the output that would go to a terminal nowhere: writing to one that is closed is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def let_in() -> Iterator[None]:
    """Let the signals that end a job come, and those that have waited, if the process has begun with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # may raise what the handler of one raises
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def held_back() -> Iterator[None]:
    """Let no signal be handled before the end of the block, and none reach a process that it starts too early.

    That process begins with the signals blocked, and lets them in once its own handlers are there. Blocking alone does
    not spare this one: the system may give a signal to another of its threads, and Python handles it in the main one.
    """
    came: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()

    def handle_now() -> None:
        for number in came:
            signal.raise_signal(number)

    with ExitStack() as after:
        after.callback(handle_now)
        for number in (*ENDING_SIGNALS, signal.SIGINT, signal.SIGHUP):
            if in_main and callable(handler := signal.getsignal(number)):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, frame: came.append(number))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
        after.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield
