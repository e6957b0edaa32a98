"""A replica next to an actor on its machine: the actor is the parent of its supervisor, and has its log.

The log is an anonymous file, which ends with the processes.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from persia_cli.disk import writing
from persia_cli.engines.child import LOST, failure_in
from persia_cli.engines.job import SIGNALLED
from persia_cli.engines.processes import python_module
from persia_cli.errors import RoleError, one_line
from persia_cli.version import __version__

PORTION = 2**20
"""Bytes of a log that are fetched at once."""
RAYS_OWN = "RAY_"
"""Beginning of the names of Ray's variables, its token among them, which roles have no use for."""
POLL_S = 0.25
"""Seconds between two questions to an actor."""
MOST_SAID = 300


@dataclass(frozen=True, slots=True)
class News:
    """Progress of a replica: the next portion of its log, and the exit code, None while its supervisor runs."""

    host: str
    output: bytes
    code: int | None


class Actor:
    """The actor of one replica, on its machine. The replica ends with it."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this process lives
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: Sequence[str], given: str) -> News:
        """Start the supervisor with arguments of `persia`; `given` is the beginning of its input."""
        # Ray blocks SIGINT in its workers, and a process begins with the mask of the thread that starts it.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [*python_module("persia_cli"), *arguments],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith(RAYS_OWN)},
                cwd="/",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the log has the reason
            self._process.stdin.write(given.encode())
            self._process.stdin.flush()
        return self.news(0)

    def news(self, known: int) -> News:
        """Return the progress; the caller has `known` bytes of the log."""
        assert self._process is not None
        code = self._process.poll()  # before the log is read, so that the end of a replica comes with its last lines
        output = os.pread(self._log.fileno(), PORTION, known)
        return News(socket.gethostname(), output, None if len(output) == PORTION else code)

    def end(self) -> None:
        """End the supervisor by the end of its input."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


class ActorReplica:
    """A replica next to an actor, as the driver sees it; no call here waits for the actor."""

    machine = "a machine of the Ray cluster"

    def __init__(self, actor: Any, arguments: list[str], given: str, log: Path, kill: Any) -> None:
        """Start it; `kill` ends an actor."""
        self._actor, self._log, self._kill = actor, log, kill
        self._answer: Any = actor.start.remote(arguments, given)
        self._again_s = 0.0
        self._known = 0
        self._lost = ""
        self.code: int | None = None

    @property
    def why(self) -> str:
        """The reason of its end, as text."""
        return self._lost or failure_in(self._log.read_text(encoding="utf-8", errors="replace"))

    def poll(self) -> None:
        """Take the answer to the last question, if it has come, and ask the next."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

        if self.code is not None:
            return
        now = time.monotonic()
        if self._answer is None and now < self._again_s:
            return
        if self._answer is None:
            self._answer = self._actor.news.remote(self._known)
        if not ray.wait([self._answer], timeout=0)[0]:
            return
        answer, self._answer, self._again_s = self._answer, None, now + POLL_S
        try:
            self._update(ray.get(answer))
        except ActorUnavailableError:
            return  # Ray does not reach it for the moment, and reports if that is for good
        except RayActorError as error:
            self._lost, self.code = one_line(error)[:MOST_SAID], LOST
        except RayTaskError as error:
            raise RoleError(
                f"{self._log.stem} cannot be started by its actor: {one_line(error.cause)[:MOST_SAID]}; every machine "
                f"of the Ray cluster needs persia {__version__}"
            ) from None

    def _update(self, news: News) -> None:
        self.machine = news.host
        with writing(self._log), self._log.open("ab") as log:
            log.write(news.output)
        self._known += len(news.output)
        if len(news.output) == PORTION:
            self._again_s = 0.0
        if news.code is not None:
            self.code = SIGNALLED - news.code if news.code < 0 else news.code

    def end(self) -> None:
        """End the replica."""
        self._actor.end.remote()

    def close(self) -> None:
        """End the actor, and with it all that it has started."""
        self._kill(self._actor)
