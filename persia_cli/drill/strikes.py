"""How a job is disturbed: signals, cut connections, damaged messages, files that may not grow."""

import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from persia_cli.drill.connections import cut
from persia_cli.drill.guard import undone
from persia_cli.errors import UserError
from persia_cli.launch.running import RunningProcess

RUNS_S, STANDS_S = 0.05, 0.2
"""Seconds that a slow process runs, and stands still, in turns."""
AGAIN_S = 0.05
"""Seconds between two cuts: processes connect again at once."""
TINY = 512
"""Bytes of the largest file that a process may write whose disk is full."""

Processes = Mapping[str, RunningProcess]


def kill(targets: Sequence[RunningProcess]) -> None:
    """Kill processes at once."""
    for target in targets:
        target.send(signal.SIGKILL)


def stop(targets: Sequence[RunningProcess], for_s: float, wait: Callable[[float], None]) -> None:
    """Have processes stand still for a while; `wait` waits so many seconds."""
    with undone(stopped=targets):
        _stand_still(targets, for_s, wait)


def slow(targets: Sequence[RunningProcess], for_s: float, wait: Callable[[float], None]) -> None:
    """Have processes run a fifth of the time for a while."""
    with undone(stopped=targets):
        deadline = time.monotonic() + for_s
        while time.monotonic() < deadline:
            _stand_still(targets, STANDS_S, wait)
            wait(RUNS_S)


def _stand_still(targets: Sequence[RunningProcess], for_s: float, wait: Callable[[float], None]) -> None:
    try:
        for target in targets:
            target.send(signal.SIGSTOP)
        wait(for_s)
    finally:
        for target in targets:
            target.send(signal.SIGCONT)


def cut_for(between: Callable[[], Sequence[RunningProcess]], for_s: float, wait: Callable[[float], None]) -> int:
    """Break the connections between two processes as long as that lasts; return how many.

    `between` returns the two processes, of which one may have died. Raises UserError if they have no connection.
    """
    broken = 0
    deadline = time.monotonic() + for_s
    while True:
        pair = between()
        broken += cut(*pair) if len(pair) == 2 else 0
        if not broken:
            raise UserError(
                "there is no connection between the two, so none can be cut; choose two that talk to each other"
            )
        if time.monotonic() >= deadline:
            return broken
        wait(AGAIN_S)


@contextmanager
def full_disk(writers: Sequence[RunningProcess]) -> Iterator[None]:
    """Let the files of processes not grow within the block, as on a full disk.

    The limit of a process (RLIMIT_FSIZE) needs no rights and no file system of its own: nothing is left mounted if the
    drill is killed, and no other program's room is taken. A write then fails as it does when a quota is used up.
    """
    before: list[tuple[RunningProcess, tuple[int, int]]] = []
    for writer in writers:
        with suppress(ProcessLookupError):
            before.append((writer, resource.prlimit(writer.pid, resource.RLIMIT_FSIZE)))
    with undone(limits=before):
        for writer, (_, hard) in before:
            with suppress(ProcessLookupError):
                resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (TINY, hard))
        yield
