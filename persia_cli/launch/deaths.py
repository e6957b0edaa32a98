"""Who is told of the deaths of a replica's processes, and decides on new ones: the coordinator, but not on its own."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.control.restarts import RestartPolicy, ended_how
from persia_cli.errors import DiskError
from persia_cli.launch.job import JOB, record
from persia_cli.launch.role import read_job
from persia_cli.observe.history import CONFIG
from persia_cli.roles.coordinator.takeover import is_continued
from persia_cli.wire.job_messages import Death, Verdict
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.place import own_process
from persia_cli.wire.sockets import Context

log = logging.getLogger(__name__)

VERDICT_S = 20.0
"""Seconds of silence of the coordinator after which a death is final."""
MOST_OF_SILENCE = 0.25
"""Longest wait for a new coordinator, as a fraction of the time for which it may be silent."""


class Reports(Protocol):
    """Who is told of deaths, and decides."""

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        """Report a death; `on_verdict` is called then or later."""


class DeathReports:
    """A supervisor's client of the coordinator, which connects at the first death; all on one thread."""

    def __init__(self, name: str, address: Callable[[], str], context: Callable[[], Context]) -> None:
        self._name, self._address, self._new_context = name, address, context
        self._context: Context | None = None
        self._loop: Loop | None = None

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        """Report a death; `on_verdict` is called while `poll` runs."""
        if self._loop is None:
            self._context = self._new_context()
            self._loop = Loop(self._context, self._name)
            identity = identity_of(self._name, own_process())
            self._client = self._loop.connect(self._address(), "coordinator", identity, 0.5, VERDICT_S)
        self._client.request(death, on_reply=on_verdict, waiting_for=f"its word on {death.role}-{death.index}")

    def poll(self) -> None:
        """Receive what has come; raises WireError if the coordinator has gone or will not hear of it."""
        if self._loop is not None:
            self._loop.poll(0.0)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._loop is not None and self._context is not None:
            self._loop.close()
            self._context.destroy(linger=0)
        self._loop = self._context = None


class CoordinatorDeaths:
    """Who decides on a new process of the coordinator: its supervisor, for there is nobody else to ask."""

    def __init__(self, run_dir: Path, run: Run) -> None:
        self._run_dir = run_dir
        # All others wait for the coordinator, and give up once it has been silent for too long.
        most_wait_s = run.cluster.silence_timeout_s * MOST_OF_SILENCE
        self._policy = RestartPolicy(run.recovery.max_restarts, run.recovery.window_s, most_wait_s)

    def send(self, death: Death, on_verdict: Callable[[Verdict], None]) -> None:
        """Record a death, and call `on_verdict` at once."""
        name, how = f"{death.role}-{death.index}", ended_how(death.exit_code)
        wait_s = self._policy.next(name, time.monotonic())
        if wait_s is None:
            limits = f"{self._policy.max_restarts} within {self._policy.window_s:g} s"
            why = f"{name} {how}, and its restarts are used up (recovery.max_restarts: {limits})"
            on_verdict(Verdict(False, 0.0, why))
            return
        try:
            record(self._run_dir, event="died", replica=name, pid=death.process.pid, cause=how)
        except DiskError as error:
            log.warning("%s", error)
        on_verdict(Verdict(True, wait_s, ""))


def coordinator_deaths(run_dir: Path) -> CoordinatorDeaths | None:
    """Return who decides on the coordinator of a run that has been prepared; None if it gets no new process."""
    run = read_run(run_dir / CONFIG)
    if not is_continued(run, read_job(run_dir / JOB)):
        return None
    return CoordinatorDeaths(run_dir, run)
