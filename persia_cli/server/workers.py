"""The parent of a server: it owns the listening socket, and keeps as many workers as it was told."""

import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

import msgspec

from persia_cli.disk import own_folder
from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.launch.processes import python_module
from persia_cli.server.accepting import ConnectionCounts
from persia_cli.server.figures import SHARED, LogFigures, log_figures
from persia_cli.server.settings import PULSE, ServerSettings, WorkerNews, WorkerOrder
from persia_cli.serving.description import digest_of

log = logging.getLogger(__name__)

START_S = 60.0
"""Seconds within which a worker has to be ready."""
POLL_S = 0.1
LONGEST_PAUSE_S = 10.0
"""Longest time between two tries to start a worker that dies before it is ready."""
STOPPED_S = 5.0
"""Seconds after which a worker that a signal has stopped is killed: the kernel goes on to give it connections."""
NOBODY_S = 2 * START_S
"""Seconds without any worker that is ready after which the server ends: clients would wait without an answer."""
SUSPENDED_S = 2.0
"""A pause of this process that tells that it was stopped itself, and perhaps its workers with it."""
KILL_AFTER_S = 2.0
"""Seconds, beyond those of draining and logging, after which a worker that has not ended is killed."""
PREFIX = "persia-serve-"
"""Of the folder of figures, in that of temporary files."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEWS = msgspec.json.Decoder(WorkerNews)


class _Fault(NamedTuple):
    """Why a worker is killed, for figures and in words."""

    reason: str
    words: str


class _Worker:
    """A place for a worker, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = self.has_said_why = False
        self.heard = 0.0
        """When its process began, or last told something."""
        self.fault: _Fault | None = None
        self.after: str | None = None
        """How the process before ended."""
        self.next_start = 0.0
        self.pause = 0.1

    def start(self, order: WorkerOrder, environment: dict[str, str]) -> IO[bytes]:
        """Start a process; returns what it writes its news to."""
        text = msgspec.json.encode(msgspec.structs.replace(order, number=self.number, after=self.after))
        self.process = subprocess.Popen(
            python_module("persia_cli.server.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment, pass_fds=[order.listener, order.connections],
        )  # fmt: skip
        self.is_ready = self.has_said_why = False
        self.heard, self.fault = time.monotonic(), None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError), self.process.stdin:
            self.process.stdin.write(text)
        return self.process.stdout

    def put_off(self) -> None:
        """Wait before the next start, longer after each one that has come to nothing."""
        self.pause = 0.1 if self.is_ready else min(2 * self.pause, LONGEST_PAUSE_S)
        self.next_start = time.monotonic() + (0.0 if self.is_ready else self.pause)
        self.process, self.is_ready = None, False


class Workers:
    """The workers of one server, from their start to their end."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, count: int) -> None:
        self._settings, self._listener = settings, listener
        model = digest_of(Path(settings.folder))
        self._counts = ConnectionCounts.new(count)
        self._order = WorkerOrder(
            settings, os.getpid(), listener.fileno(), self._counts.descriptor, 0, count, model
        )  # fmt: skip
        self._workers = [_Worker(number) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._was_ready = False
        self._signals = 0
        self._last_round = self._last_ready = time.monotonic()
        self._trouble = PersiaError("none has said why")
        """Why the last worker that is not there is not."""

    def run(self, on_ready: Callable[[], None]) -> LogFigures:
        """Serve until SIGTERM or Ctrl-C; calls `on_ready` when all workers are. Returns what they have logged.

        Raises PersiaError if none can be ready, also later.
        """
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            with _figures_folder() as figures:
                environment = os.environ | {SHARED: figures}
                try:
                    while not self._signals:
                        self._tend(environment, on_ready)
                finally:
                    self._stop()
                return log_figures(figures)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            self._counts.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _tend(self, environment: dict[str, str], on_ready: Callable[[], None]) -> None:
        """Start the workers that are missing, kill those that hang, and heed the news of all."""
        now = time.monotonic()
        if now - self._last_round > SUSPENDED_S:
            for worker in self._workers:
                worker.heard = now
            self._last_ready = now
        self._last_round = now
        for worker in self._workers:
            if worker.process is None and now >= worker.next_start:
                try:
                    pipe = worker.start(self._order, environment)
                except OSError as error:  # too many processes, or no memory for one more
                    if not self._was_ready:
                        raise PersiaError(f"a worker of the server cannot be started: {error}") from error
                    log.error("worker %d cannot be started: %s", worker.number, error)
                    self._trouble = PersiaError(str(error))
                    worker.put_off()
                    continue
                self._selector.register(pipe, selectors.EVENT_READ, worker)
            elif worker.process is not None and worker.fault is None and (fault := self._fault(worker, now)):
                worker.fault = fault
                worker.process.kill()
        for key, _ in self._selector.select(POLL_S):
            worker = key.data
            told = os.read(key.fd, 65536)
            if told:
                worker.heard = time.monotonic()
                for line in filter(None, told.split(PULSE)):
                    self._heed(worker, _NEWS.decode(line))
            else:
                self._selector.unregister(key.fileobj)
                self._bury(worker)
        if not self._was_ready and all(worker.is_ready for worker in self._workers):
            self._was_ready = True
            on_ready()
        if any(worker.is_ready for worker in self._workers):
            self._last_ready = now
        elif self._was_ready and now - self._last_ready > NOBODY_S:
            raise type(self._trouble)(f"no worker has been ready for {NOBODY_S:g} s: {self._trouble}")

    def _fault(self, worker: _Worker, now: float) -> _Fault | None:
        """Return why a worker has to be killed, if it has."""
        assert worker.process is not None
        silent_s, most_s = now - worker.heard, self._settings.silence_s
        if not worker.is_ready:
            return _Fault("not ready", f"was not ready after {START_S:g} s") if silent_s > START_S else None
        if silent_s > most_s:
            return _Fault("hung", f"has hung for {most_s:g} s")
        if silent_s > STOPPED_S and _is_stopped(worker.process.pid):
            return _Fault("stopped", f"was stopped by a signal, and for {STOPPED_S:g} s nobody let it go on")
        return None

    def _heed(self, worker: _Worker, news: WorkerNews) -> None:
        if news.failure is None:
            worker.is_ready = True
            return
        worker.has_said_why = True
        self._trouble = (UserError if news.is_users else PersiaError)(news.failure)
        if not self._was_ready:
            raise self._trouble
        log.error("worker %d cannot start: %s", worker.number, news.failure)

    def _bury(self, worker: _Worker) -> None:
        """Take note that a worker has ended; raises RoleError if the server has never been ready."""
        assert worker.process is not None
        assert worker.process.stdout is not None
        code = worker.process.wait()
        worker.process.stdout.close()
        self._counts.forget(worker.number)
        if self._signals:
            return
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        how = f"ended by {ended}" if worker.fault is None else f"{worker.fault.words}, and was killed"
        if not self._was_ready:
            raise RoleError(f"a worker of the server {how}, before all were ready; see what it wrote above")
        log.warning("worker %d, process %d, %s; the next one starts", worker.number, worker.process.pid, how)
        if not worker.has_said_why:
            self._trouble = RoleError(f"the last worker {how}")
        worker.after = ended if worker.fault is None else worker.fault.reason
        worker.put_off()

    def _stop(self) -> None:
        """Have all workers finish their requests and end, and kill those that do not in time, or at another signal."""
        self._listener.close()
        running = [worker.process for worker in self._workers if worker.process is not None]
        for process in running:
            process.terminate()
        ending_s = self._settings.drain_s + (self._settings.log_s if self._settings.log else 0)
        first, until = self._signals, time.monotonic() + ending_s + KILL_AFTER_S
        while any(process.poll() is None for process in running):
            if time.monotonic() > until or self._signals > max(first, 1):
                for process in running:
                    process.kill()
            time.sleep(POLL_S / 5)
        for process in running:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def _figures_folder() -> Iterator[str]:
    """Yield a new folder for files of figures; raises UserError."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(PREFIX))
        except OSError as error:
            raise UserError(f"figures of the server need a place: {error}; name a folder for them as TMPDIR") from error
        yield str(folder)


def _is_stopped(process: int) -> bool:
    """Return whether a signal has stopped a process (proc(5))."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"
