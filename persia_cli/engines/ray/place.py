"""The supervisor of one replica, as an actor on its machine, or the command for the coordinator, starts and sees it.

Nothing of it has a name on the machine's disk: its log is an anonymous file, which ends with the processes.
"""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from persia_cli import __version__
from persia_cli.engines.processes import python_module

PORTION = 2**20
"""Bytes of a log that are fetched at once."""
RAYS_OWN = "RAY_"
"""Begin of the names of Ray's variables, its token among them, which roles have no use for."""


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What a machine says of itself."""

    version: str
    """Of Persia."""
    host: str
    address: str
    """At which the cluster's other machines reach it."""


@dataclass(frozen=True, slots=True)
class News:
    """What is new of a replica."""

    said: bytes
    """Next portion of the log of its supervisor and its processes."""
    code: int | None
    """Exit code of its supervisor, None while that runs; minus a signal's number."""


class Place:
    """One replica on one machine. The kernel ends its processes when the thread that called `start` ends."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this process lives
        self._process: subprocess.Popen[bytes] | None = None

    def machine(self) -> PlaceFacts:
        """Return what this machine is."""
        import ray

        return PlaceFacts(__version__, socket.gethostname(), ray.util.get_node_ip_address())

    def start(self, words: Sequence[str], given: str) -> None:
        """Start the supervisor with words of `persia`, and hand it `given` through its input."""
        parent = ["--parent", str(os.getpid())]
        # Ray blocks SIGINT in its workers, and a process begins with the mask of the thread that starts it.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [*python_module("persia_cli"), *words[:1], *parent, *words[1:]],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # so that Ctrl-C reaches it once, through this process
                env={name: value for name, value in os.environ.items() if not name.startswith(RAYS_OWN)},
                cwd="/",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:  # why it has ended, it says itself
            pipe.write(given.encode())

    def news(self, known: int) -> News:
        """Return what is new; the caller has `known` bytes of the log."""
        assert self._process is not None
        code = self._process.poll()  # before the log is read, so that the end of a replica comes with its last words
        said = os.pread(self._log.fileno(), PORTION, known)
        return News(said, None if len(said) == PORTION else code)

    def signal(self, number: int) -> None:
        """Send the supervisor a signal, if it runs; SIGKILL ends its replica too."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def close(self) -> None:
        """End what runs."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()
