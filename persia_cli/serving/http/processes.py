"""The processes of a server: this one starts workers, and replaces those that die, hang or have an old model.

- The parent opens no model and answers nothing, so little can end it. A worker opens and tests the model by itself.
- A worker that does not start leaves the others alone: it is counted, and tried again later. The server ends with its
  error only if there are no others.
- SIGHUP starts workers anew, one by one: the old one ends when the next one answers. The same happens if a worker finds
  another model in the folder than the others have. If the next one does not start, the others stay.
- A server that follows a published folder has a follower too. Workers wait for its first version, and take later ones
  without being replaced. A follower that dies is started again; meanwhile workers serve on what they have.
- SIGTERM and SIGINT end the server: `ready` is false for `drain_s`, then workers finish their requests and end.
"""

import logging
import math
import multiprocessing
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from persia_cli.disk import own_folder
from persia_cli.errors import PersiaError, RoleError, UserError, count
from persia_cli.serving.http.metrics import LogCounts, ServingMetrics
from persia_cli.serving.http.settings import FINISH_S, LOG_S, ServerSettings, WorkerFailed, WorkerReady
from persia_cli.serving.http.shared import ServerMemory

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Seconds between two looks at signals."""
HUNG_LOOKS = 300
"""Looks that may find no beat of a worker, which beats each second: pauses of the whole machine count for nothing."""
START_S = 300.0
"""Seconds that a worker may take to start."""
LATE_S = 2.0
"""Seconds after which a worker is killed that should have ended."""
LONGEST_WAIT_S = 30.0
"""Longest time from a failed start to the next one; the first is a second, and each is twice the one before."""
BACKLOG = 2048
"""Maximum number of connections that wait for a worker; the system may have a lower one."""
SPARE_FILES = 124
"""Files that a worker has open, or may have, besides its connections."""
PREFIX = "persia-serve-"
"""Beginning of the name of the folder of prepared versions."""
_SPAWN = multiprocessing.get_context("spawn")


def serve(
    settings: ServerSettings, listener: socket.socket, workers: int, on_ready: Callable[[str], None]
) -> LogCounts:  # fmt: skip
    """Serve at a bound socket until SIGTERM or Ctrl-C; returns counts of the log.

    Calls `on_ready` with the name of the model once a worker is. Raises UserError, RoleError if no worker can start.
    """
    _allow_files(settings.most_connections + SPARE_FILES)
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # two sockets may be bound to a port, and one may listen
        raise UserError(f"cannot listen: {error.strerror}; another server has begun to listen there") from error
    memory = ServerMemory(workers + 2 + (settings.source is not None))
    with nullcontext(settings.folder) if settings.source is None else own_folder(PREFIX) as folder:
        settings = msgspec.structs.replace(settings, folder=str(folder))
        server = _Supervisor(settings, listener, memory, workers, on_ready)
        try:
            with _signals(server):
                server.run()
            return server.metrics.log_counts()
        finally:
            server.kill()
            memory.close()


def _run_worker(*args: Any) -> None:
    """Run a worker. Its code is imported in its process alone, since the parent lives on little memory."""
    from persia_cli.serving.http.worker import run

    run(*args)


def _run_follower(*args: Any) -> None:
    from persia_cli.serving.http.follower import run

    run(*args)


def _started(target: Callable[..., None], name: str, args: tuple[Any, ...]) -> tuple[BaseProcess, Connection]:
    """Start a process and return it, with the connection whose other end is its last argument; raises OSError.

    Signals are for the parent alone: those of a terminal or a service manager go to all processes.
    """
    news, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, name=name, args=(*args, theirs), daemon=True)
    resource_tracker.ensure_running()  # which unblocks signals, else at the start of the first process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return process, news


class _FollowerProcess:
    """The follower, which its parent keeps alive."""

    def __init__(self, settings: ServerSettings, memory: ServerMemory) -> None:
        self._args = (settings, memory, memory.parts - 1)
        self._process: BaseProcess | None = None
        self._news: Connection
        self._wait_s, self._not_before = 0.0, 0.0
        self.is_ready = False
        """True once it has had a version to serve."""

    def look(self) -> None:
        """Read its news, and start it if it is not alive; raises UserError, RoleError if it had never a version."""
        if self._process is None:
            if time.monotonic() >= self._not_before:
                self._process, self._news = _started(_run_follower, "follower", self._args)
            return
        failure = None
        if self._news.poll():
            try:
                news = self._news.recv()
            except (EOFError, OSError):
                news = None
            self.is_ready = self.is_ready or isinstance(news, WorkerReady)
            self._wait_s = 0.0 if isinstance(news, WorkerReady) else self._wait_s
            failure = news if isinstance(news, WorkerFailed) else None
        if failure is None and self._process.is_alive():
            return
        self._process.join(LATE_S)
        self.kill()
        if not self.is_ready:
            raise _failed("follower", self._process, failure)
        why = failure.sentence if failure is not None else f"it {_end_of(self._process)}"
        self._process, self._wait_s = None, min(LONGEST_WAIT_S, 2 * self._wait_s or 1.0)
        self._not_before = time.monotonic() + self._wait_s
        log.warning("the follower has ended and is started again: %s; workers serve on what they have", why)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._news.close()


class _WorkerProcess:
    """A worker process, as its parent sees it."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, memory: ServerMemory, part: int) -> None:
        """Start it; raises OSError."""
        self.part = part
        self.process, self.news = _started(_run_worker, f"worker-{part}", (settings, listener, memory, part))
        self.ready: WorkerReady | None = None
        self.is_old = False
        """True if another is to take its place."""
        self.is_ending = False
        """True once it was asked to end."""
        self.kill_at = time.monotonic() + START_S
        self.beats, self.still = 0, 0
        """Its last known beat, and the number of looks since that one."""

    def end(self) -> None:
        """Let it finish its requests and end; it is killed if it has not begun."""
        self.kill_at = time.monotonic() + FINISH_S + LOG_S + LATE_S
        self.is_old, self.is_ending = False, True
        self.news.close()
        if self.ready is None:
            self.process.kill()


class _Supervisor:
    """The workers, and what is to happen with them."""

    def __init__(
        self, settings: ServerSettings, listener: socket.socket, memory: ServerMemory, number: int,
        on_ready: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._listener, self._memory, self._number = settings, listener, memory, number
        self._on_ready = on_ready
        self._follower = None if settings.source is None else _FollowerProcess(settings, memory)
        self.metrics = ServingMetrics(memory, part=0)
        self._workers: list[_WorkerProcess] = []
        self._model: str | None = None
        """Digest of the model that workers are to have."""
        self._wait_s, self._not_before = 0.0, 0.0
        self._end_at: float | None = None
        self.is_reloading = False
        """True if SIGHUP has come."""

    def end(self, drain_s: float) -> None:
        """Begin the end, or end at once if it has begun."""
        now = time.monotonic()
        self._end_at = now + drain_s if self._end_at is None else now
        self._memory.set_ending()

    def run(self) -> None:
        """Keep the workers until the end."""
        while self._end_at is None or time.monotonic() < self._end_at:
            if self.is_reloading:
                self.is_reloading = False
                log.info("starting the workers anew, one by one, for SIGHUP")
                self._replace(self._workers)
            if self._follower is not None:
                self._follower.look()
            if self._follower is None or self._follower.is_ready:
                self._start_missing()
            self._look()
        self._listener.close()
        for worker in self._workers:
            worker.end()
        while self._workers:
            self._look()

    def kill(self) -> None:
        """Kill all processes that are left."""
        if self._follower is not None:
            self._follower.kill()
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()

    def _start_missing(self) -> None:
        """Start workers: as many as are missing, or one that is to take the place of an old one."""
        if time.monotonic() < self._not_before:
            return
        stay = [worker for worker in self._workers if not worker.is_ending]
        wanted = self._number + any(worker.is_old for worker in stay)
        used = {worker.part for worker in self._workers}
        free = [part for part in range(1, self._number + 2) if part not in used]
        for part in free[: wanted - len(stay)]:
            try:
                self._workers.append(_WorkerProcess(self._settings, self._listener, self._memory, part))
            except OSError as error:
                self._start_failed(RoleError(f"no process can be started: {error.strerror}"))
                return

    def _look(self) -> None:
        """Wait a moment for news of workers, and act on them."""
        sources: dict[object, _WorkerProcess] = {
            worker.news: worker for worker in self._workers if worker.ready is None and not worker.is_ending
        }
        sources |= {worker.process.sentinel: worker for worker in self._workers}
        ready = wait(list(sources), LOOK_S)  # type: ignore[arg-type]
        for source in sorted(
            ready, key=lambda source: not isinstance(source, Connection)
        ):  # the last news before the end
            worker = sources[source]
            if isinstance(source, Connection):
                self._read_news(worker)
            elif worker in self._workers:
                self._remove(worker)
        self._kill_late()
        self.metrics.workers.set(sum(worker.ready is not None and not worker.is_ending for worker in self._workers))

    def _read_news(self, worker: _WorkerProcess) -> None:
        try:
            news = worker.news.recv()
        except (EOFError, OSError):
            news = WorkerFailed(1, "")
        if isinstance(news, WorkerFailed):
            worker.process.join(LATE_S)
            self._remove(worker, news)
            return
        worker.ready, worker.kill_at, self._wait_s = news, math.inf, 0.0
        if self._model is None:
            self._on_ready(news.name)
        elif news.model != self._model:
            log.warning("the folder has another model now: %s; the other workers are replaced", news.name)
            self._replace([other for other in self._workers if other is not worker])
        self._model = news.model
        old = [worker for worker in self._workers if worker.is_old]
        if old and len([worker for worker in self._workers if not worker.is_ending]) > self._number:
            old[0].end()
            if len(old) == 1:
                log.info("all workers are new, and serve %s", news.name)

    def _replace(self, workers: list[_WorkerProcess]) -> None:
        for worker in workers:
            worker.is_old = not worker.is_ending

    def _remove(self, worker: _WorkerProcess, failure: WorkerFailed | None = None) -> None:
        """Remove a worker that has ended, or cannot start."""
        self._workers.remove(worker)
        self._memory.set_open(worker.part, None)
        worker.process.kill()
        worker.process.join()
        worker.news.close()
        if worker.is_ending:
            return
        how = _end_of(worker.process)
        if worker.ready is not None:
            self.metrics.failures.labels("hung" if worker.still >= HUNG_LOOKS else "died").inc()
            log.warning("worker %s %s; another is started", worker.process.pid, how)
            return
        self._start_failed(_failed("worker", worker.process, failure))

    def _start_failed(self, error: PersiaError) -> None:
        """Leave the other workers as they are, and try again later; raises the error if there are no others."""
        self.metrics.failures.labels("start").inc()
        if all(worker.is_ending for worker in self._workers):
            raise error
        self._wait_s = min(LONGEST_WAIT_S, 2 * self._wait_s or 1.0)
        self._not_before = time.monotonic() + self._wait_s
        log.warning("a worker cannot start: %s; the others go on", error)
        for worker in self._workers:
            worker.is_old = False

    def _kill_late(self) -> None:
        """Kill workers that hang, or do not start or end in time."""
        now = time.monotonic()
        for worker in self._workers:
            beats = int(self._memory.beats[worker.part])
            worker.still = worker.still + 1 if worker.ready is not None and beats == worker.beats else 0
            worker.beats = beats
            if now > worker.kill_at or worker.still == HUNG_LOOKS:
                log.warning("worker %s hangs; it is killed", worker.process.pid)
                worker.process.kill()
                worker.kill_at = now + LATE_S


def _failed(role: str, process: BaseProcess, failure: WorkerFailed | None) -> PersiaError:
    """Return the error of a process that could not begin."""
    sentence = (failure and failure.sentence) or f"a {role} {_end_of(process)} before it was ready"
    is_users = failure is not None and failure.exit_code == UserError.exit_code
    return UserError(sentence) if is_users else RoleError(sentence)


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _allow_files(number: int) -> None:
    """Allow this process, and those that it starts, so many files; raises UserError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= number or soft == resource.RLIM_INFINITY:
        return
    if number > hard != resource.RLIM_INFINITY:
        raise UserError(
            f"{count(number - SPARE_FILES, 'connection')} of a worker need {number:,} open files, and the system "
            f"allows {hard:,}: give fewer --connections, or raise ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


@contextmanager
def _signals(server: _Supervisor) -> Iterator[None]:
    """Act on signals in the block: SIGTERM drains, SIGINT ends, SIGHUP replaces the workers."""

    def reload() -> None:
        server.is_reloading = True

    acts: dict[int, Callable[[], None]] = {
        signal.SIGTERM: lambda: server.end(server._settings.drain_s),
        signal.SIGINT: lambda: server.end(0.0),
        signal.SIGHUP: reload,
    }
    before = {number: signal.signal(number, lambda number, _: acts[number]()) for number in acts}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
