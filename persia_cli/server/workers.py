"""The parent of a server: it owns the listening socket, and keeps as many workers as it was told."""

import logging
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from persia_cli.errors import PersiaError, RoleError, UserError
from persia_cli.launch.processes import python_module
from persia_cli.server.figures import SHARED, LogFigures, log_figures
from persia_cli.server.figures_folder import figures_folder
from persia_cli.server.settings import ServerSettings, WorkerNews, WorkerOrder
from persia_cli.serving.description import digest_of

log = logging.getLogger(__name__)

START_S = 60.0
"""Seconds within which a worker has to be ready."""
POLL_S = 0.1
LONGEST_PAUSE_S = 10.0
"""Longest time between two tries to start a worker that dies before it is ready."""
KILL_AFTER_S = 2.0
"""Seconds, beyond those of draining and logging, after which a worker that has not ended is killed."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NEWS = msgspec.json.Decoder(WorkerNews)


class _Worker:
    """A place for a worker, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = False
        self.started = 0.0
        self.next_start = 0.0
        self.pause = 0.1

    def start(self, order: bytes, listener: int, environment: dict[str, str]) -> IO[bytes]:
        """Start a process; returns what it writes its news to."""
        self.process = subprocess.Popen(
            python_module("persia_cli.server.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment, pass_fds=[listener],
        )  # fmt: skip
        self.is_ready, self.started = False, time.monotonic()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError), self.process.stdin:
            self.process.stdin.write(order)
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
        self._order = msgspec.json.encode(WorkerOrder(settings, os.getpid(), listener.fileno(), model))
        self._workers = [_Worker(number) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._was_ready = False
        self._signals = 0

    def run(self, on_ready: Callable[[], None]) -> LogFigures:
        """Serve until SIGTERM or Ctrl-C; calls `on_ready` when all workers are. Returns what they have logged.

        Raises PersiaError if none can be ready.
        """
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            with figures_folder() as figures:
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _tend(self, environment: dict[str, str], on_ready: Callable[[], None]) -> None:
        """Start the workers that are missing, and heed the news of the others."""
        now = time.monotonic()
        for worker in self._workers:
            if worker.process is None and now >= worker.next_start:
                try:
                    pipe = worker.start(self._order, self._listener.fileno(), environment)
                except OSError as error:  # too many processes, or no memory for one more
                    if not self._was_ready:
                        raise PersiaError(f"a worker of the server cannot be started: {error}") from error
                    log.error("worker %d cannot be started: %s", worker.number, error)
                    worker.put_off()
                    continue
                self._selector.register(pipe, selectors.EVENT_READ, worker)
            elif worker.process is not None and not worker.is_ready and now - worker.started > START_S:
                log.warning("worker %d is not ready after %g s, and is killed", worker.number, START_S)
                worker.process.kill()
        for key, _ in self._selector.select(POLL_S):
            worker = key.data
            line = os.read(key.fd, 65536)
            if line:
                self._heed(worker, _NEWS.decode(line))
            else:
                self._selector.unregister(key.fileobj)
                self._bury(worker)
        if not self._was_ready and all(worker.is_ready for worker in self._workers):
            self._was_ready = True
            on_ready()

    def _heed(self, worker: _Worker, news: WorkerNews) -> None:
        if news.failure is None:
            worker.is_ready = True
        elif self._was_ready:
            log.error("worker %d cannot start: %s", worker.number, news.failure)
        else:
            raise (UserError if news.is_users else PersiaError)(news.failure)

    def _bury(self, worker: _Worker) -> None:
        """Take note that a worker has ended; raises RoleError if the server has never been ready."""
        assert worker.process is not None
        assert worker.process.stdout is not None
        code = worker.process.wait()
        worker.process.stdout.close()
        if self._signals:
            return
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if not self._was_ready:
            raise RoleError(f"a worker of the server ended by {how} before it was ready; see what it wrote above")
        log.warning("worker %d, process %d, ended by %s; the next one starts", worker.number, worker.process.pid, how)
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
