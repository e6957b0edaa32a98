"""The process of one replica, which `persia launch-role` runs."""

import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from persia_cli.config.record import read_run
from persia_cli.control.membership import RunningClock
from persia_cli.disk import write_whole
from persia_cli.engines.job import (
    COORDINATOR_ADDRESS,
    JOB,
    LISTENING,
    SECRET_FILE,
    SIGNALLED,
    SWITCH_INTERVAL_S,
    read_job,
)
from persia_cli.engines.key_files import context_of
from persia_cli.engines.role_options import RoleOptions
from persia_cli.engines.signals import ENDING_SIGNALS
from persia_cli.errors import PreemptedError, RoleError
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.observe.history import CONFIG
from persia_cli.observe.machine import resident_bytes
from persia_cli.roles.session import CoordinatorSession
from persia_cli.roles.start import Stoppable, run_coordinator, run_role
from persia_cli.wire.secret import TOKEN, await_file, new_token, read_secret, write_token

log = logging.getLogger(__name__)

JOIN_S = 120.0
"""Seconds that a replica waits for the coordinator's token, and for the coordinator itself."""
POLL_S = 0.2
STUCK_TIMES = 2
"""A role that still runs after so many times `cluster.stop_timeout_s` is stuck; a driver kills it earlier."""


class RoleSignals:
    """Handler of a role's signals, from the start of its process on.

    SIGTERM and SIGUSR1 have the coordinator save the model and end the job; the role does its work until then, and
    repeats change nothing. SIGINT stops the role's loop; a second one ends the process.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        """True once SIGINT has stopped the role."""
        self._waits = False
        self._early: list[int] = []
        self._stoppable: Stoppable | None = None
        for number in ENDING_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)  # as `persia_cli.__main__` blocks them

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Let SIGTERM and SIGUSR1 end the process in the block, in which it waits for a job."""
        self._waits = True
        if self._early:
            sys.exit(PreemptedError.exit_code)
        yield
        self._waits = False

    def go_to(self, stoppable: Stoppable) -> None:
        """Give this role the signals from now on, and those that have come before."""
        self._stoppable = stoppable
        signal.signal(signal.SIGINT, self._on_signal)
        for number in self._early:
            self._on_signal(number, None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._waits:
            sys.exit(PreemptedError.exit_code)
        if self._stoppable is None:
            self._early.append(number)
        elif number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            self.is_stopped = True
            self._stoppable.stopped_by, self._stoppable.stop = name, True
        else:
            self._stoppable.signals.append(name)


def end_if_stuck(session: CoordinatorSession) -> None:
    """End this process if it still runs long after it was asked to stop, such as in a step or in a compiler.

    This runs on its own thread, since calls of the main thread, such as those of torch, cannot be interrupted.
    """
    while not session.stop:
        time.sleep(POLL_S)
    awake = RunningClock(time.monotonic())
    while awake.at(time.monotonic()) < STUCK_TIMES * session.stop_timeout_s:
        time.sleep(POLL_S)
    log.error("%s was asked to stop and did not, so its process ends now", session.name)
    os._exit(PreemptedError.exit_code if session.is_resumable else RoleError.exit_code)


def run_process(options: RoleOptions) -> None:
    """Run one replica to the end of the job; the coordinator reads its run and job from its run directory.

    Raises SystemExit if a signal stopped it, or ended the job to go on later.
    """
    signals = RoleSignals()
    log_to_stderr(options.name)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    retain_freed_memory()
    open_many_files()
    resident_bytes()  # opens its file now, before the process may run out of file descriptors
    if options.role == "coordinator":
        is_resumable = _coordinate(options, signals)
    else:
        assert options.secret_file is not None
        if not options.secret_file.exists():
            with signals.ending_at_once():
                await_file(options.secret_file, JOIN_S, lambda text: print(text, file=sys.stderr, flush=True))
        context = options.context()

        sessions: list[CoordinatorSession] = []

        def on_start(session: CoordinatorSession) -> None:
            sessions.append(session)
            threading.Thread(target=end_if_stuck, args=(session,), name="end-if-stuck", daemon=True).start()
            signals.go_to(session)

        try:
            run_role(context, options, on_start)
        finally:
            context.destroy(linger=0)
        is_resumable = sessions[0].is_resumable
    if signals.is_stopped:
        log.info("stopped by SIGINT")
    if is_resumable:
        sys.exit(PreemptedError.exit_code)
    if signals.is_stopped:
        sys.exit(SIGNALLED + signal.SIGINT)


def open_many_files() -> None:
    """Raise the number of files that this process may open to the system's limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # some systems report no limit but have one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _coordinate(options: RoleOptions, signals: RoleSignals) -> bool:
    """Run the coordinator; returns True if a signal ended the job, which is to go on later."""
    run_dir = options.run_dir
    assert run_dir is not None
    run = read_run(run_dir / CONFIG)
    job = read_job(run_dir / JOB)
    keys = options.require_keys(run.cluster)
    file = keys or options.token_file or run_dir / TOKEN
    if not file.exists() and keys is None:
        write_token(file, new_token())
    context = context_of(read_secret(file), run.cluster.tcp_encryption == "none")
    address_file = run_dir / COORDINATOR_ADDRESS

    coordinators: list[Stoppable] = []

    def on_start(coordinator: Stoppable, address: str) -> None:
        coordinators.append(coordinator)
        signals.go_to(coordinator)
        print(f"{LISTENING}{address}", file=sys.stderr, flush=True)
        # A file that was handed over open has this name in other processes.
        secret = str(file.absolute()).replace("/proc/self/", f"/proc/{os.getpid()}/")
        write_whole(run_dir / SECRET_FILE, secret + "\n")
        write_whole(address_file, address + "\n")

    try:
        run_coordinator(context, options.listens_at, run, job, options.advertise, on_start)
    finally:
        context.destroy(linger=0)
        if coordinators:  # else another process coordinates the run
            address_file.unlink(missing_ok=True)
            (run_dir / SECRET_FILE).unlink(missing_ok=True)
            if keys is None and options.token_file is None:
                file.unlink(missing_ok=True)
    return coordinators[0].is_resumable


def log_to_stderr(name: str) -> None:
    """Write all log records of this process to stderr, each line with the replica's name."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
