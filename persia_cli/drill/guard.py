"""A process beside a drill that undoes its disturbance when the drill ends, by whatever means: SIGKILL runs no code.

It knows of that by the end of the pipe that the drill holds open, and is ready before anything is disturbed.
"""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from persia_cli.errors import RoleError
from persia_cli.launch.processes import python_module
from persia_cli.launch.running import RunningProcess

READY = b"ready\n"
END_S = 10.0
"""Seconds that the process has to end once there is nothing more to undo."""


class Undo(msgspec.Struct):
    """What is undone: these processes run again, and may write files as large as before."""

    stopped: list[RunningProcess]
    limits: list[tuple[RunningProcess, tuple[int, int]]] = []

    def carry_out(self) -> None:
        """Undo it, where processes live; a second time changes nothing."""
        for process in self.stopped:
            process.send(signal.SIGCONT)
        for process, limits in self.limits:
            if process.lives:
                with suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


_UNDO = msgspec.json.Decoder(Undo)


@contextmanager
def undone(
    stopped: Sequence[RunningProcess] = (), limits: Sequence[tuple[RunningProcess, tuple[int, int]]] = ()
) -> Iterator[None]:
    """Undo at the end of the block what it does to processes, also if this process is killed in it.

    Raises RoleError if that cannot be made sure of.
    """
    undo = Undo(list(stopped), list(limits))
    guard = subprocess.Popen(
        python_module("persia_cli.drill.guard"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # what ends the drill's group must not end its guard
    )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdin.write(msgspec.json.encode(undo) + b"\n")
        guard.stdin.flush()
        if guard.stdout.readline() != READY:
            raise RoleError("the process that undoes a drill's disturbance did not start, so nothing was disturbed")
        try:
            yield
        finally:
            undo.carry_out()
    finally:
        guard.stdin.close()
        guard.stdout.close()
        try:
            guard.wait(END_S)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def main() -> None:
    """Undo what the first line of standard input says once the drill has closed it, or has ended."""
    undo = _UNDO.decode(sys.stdin.buffer.readline())
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
    undo.carry_out()


if __name__ == "__main__":
    main()
