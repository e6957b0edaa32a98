"""Signals that end a job after its model is saved, as drivers and roles take them."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from persia_cli.engines.output import leave_terminal
from persia_cli.errors import PreemptedError

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that save the model and end the job."""


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int], object]) -> Iterator[None]:
    """Call a handler with the number of each of these signals that comes in the block.

    SIGHUP and SIGINT stay ignored if they were: `nohup` lets a job outlive its terminal. Does nothing outside the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def is_free(number: int) -> bool:
        return number in ENDING_SIGNALS or signal.getsignal(number) is not signal.SIG_IGN

    before = {number: signal.signal(number, lambda came, _: handler(came)) for number in filter(is_free, numbers)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def end_on_signals(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """End this process with a sentence when a signal comes in the block, before its job begins or after its end."""

    def end(number: int) -> None:
        say(f"{signal.Signals(number).name}: stopped before the job began; run the same command again")
        sys.exit(PreemptedError.exit_code)

    return handling(ENDING_SIGNALS, end)


def terminating_interrupts() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP while the block runs."""

    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    return handling((signal.SIGTERM, signal.SIGHUP), interrupt)


class PreemptedNow(KeyboardInterrupt):
    """A signal that ends a job before it trains, so that there is nothing to save."""


class JobSignals:
    """A driver's handler of the signals that end its job.

    SIGTERM, SIGUSR1 and SIGHUP end a job once its model is saved, and raise PreemptedNow where training has not begun.
    Repeats change nothing.
    """

    def __init__(self) -> None:
        self.trains = False
        """True while there is a coordinator that can save."""
        self.name = ""
        """The signal that ends the job, the first of them; empty if none has come."""

    def handled(self) -> AbstractContextManager[None]:
        """Handle the signals while the block runs."""
        return handling((*ENDING_SIGNALS, signal.SIGHUP), self._on_signal)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.name:
            return
        self.name = signal.Signals(number).name
        if not self.trains:
            raise PreemptedNow(self.name)
