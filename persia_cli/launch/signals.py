"""Signals that end a job after its model is saved, as launchers and roles take them."""

import os
import signal
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from persia_cli.errors import PreemptedError

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that save the model and end the job."""

SAVING_SIGNALS = (*ENDING_SIGNALS, signal.SIGUSR2)
"""The last saves the model and lets the job go on."""

SAME_S = 0.5
"""A SIGTERM that comes within so many seconds of another is the same one: some schedulers tell a process twice."""

SECOND_S = 1.2
"""Seconds after which a process ends that was told twice to end, whatever it is at."""


class Repeats:
    """Tells the second SIGTERM from the first."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_another(self) -> bool:
        """Return whether a SIGTERM that comes now is not the first one."""
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now
        return now - self._first_s > SAME_S


def end_soon(last_words: Callable[[], None]) -> None:
    """End this process before long, after `last_words`, unless it has ended by then."""

    def end() -> None:
        try:
            last_words()
        finally:
            os._exit(PreemptedError.exit_code)

    timer = threading.Timer(SECOND_S, end)
    timer.daemon = True
    timer.start()


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
    """A signal that ends the job without saving: nothing is trained yet, or SIGTERM came again."""


class JobSignals:
    """A launcher's handler of the signals that end its job, as a context; does nothing outside the main thread.

    SIGTERM, SIGUSR1 and SIGHUP are `passed_on` to a job that trains, and raise PreemptedNow in one that has not begun.
    A second SIGTERM raises it too. SIGHUP stays ignored if it was: `nohup` lets a job outlive its terminal.
    """

    def __init__(self) -> None:
        self.trains = False
        """True while there is a coordinator that can save."""
        self.name = ""
        """The first signal that ends the job."""
        self.again = False
        """True once everything is to end at once."""
        self.on_second: Callable[[], None] = lambda: None
        self._came: deque[str] = deque()
        self._repeats = Repeats()

    @contextmanager
    def handled(self) -> Iterator["JobSignals"]:
        """Handle the signals while the block runs."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = [*SAVING_SIGNALS]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def passed_on(self) -> list[str]:
        """Return the names of the signals that have come since the last call."""
        return [self._came.popleft() for _ in range(len(self._came))]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _drop_terminal()
        name = signal.Signals(number).name
        if number == signal.SIGUSR2:
            self._came.append(name)
            return
        self.name = self.name or name
        if number == signal.SIGTERM and self._repeats.is_another():
            self.again = True
            self.on_second()
            raise PreemptedNow(name)
        if not self.trains:
            raise PreemptedNow(name)
        self._came.append(name)


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
        for number in (*SAVING_SIGNALS, signal.SIGINT, signal.SIGHUP):
            if in_main and callable(handler := signal.getsignal(number)):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, frame: came.append(number))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SAVING_SIGNALS)
        after.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield
