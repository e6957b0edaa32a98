"""The part of a started job that all engines with processes share: the coordinator is a child of the driver."""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from persia_cli.control.membership import RunningClock
from persia_cli.engines.job import ERROR_LINE, ROLES, address_in
from persia_cli.engines.supervisor import Supervised
from persia_cli.errors import RoleError
from persia_cli.plan.job import COORDINATOR, JobPlan

POLL_S = 0.02
SETTLE_S = 3.0
"""Seconds that the coordinator has to record why a replica failed, before the driver reports it itself."""
TAIL_LINES = 20
FIRST = f"{COORDINATOR}-0"


class CoordinatedJob(ABC):
    """The replicas of one start of a job, whose logs are in the run directory."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._coordinator: Supervised | None = None
        self._saves = False
        """True once the coordinator was asked to save the model and end the job."""

    @abstractmethod
    def check(self) -> None:
        """Raise the failure that ended the job, if there was one."""

    @property
    def _is_coordinated(self) -> bool:
        """True while the coordinator runs."""
        return self._coordinator is not None and self._coordinator.process.poll() is None

    def end_with_model(self) -> None:
        """Have the coordinator save the model and end the job."""
        if not self._saves and self._coordinator:
            self._saves = True
            self._coordinator.signal(signal.SIGUSR1)

    def wait(self, seconds: float) -> None:
        """Wait until the coordinator has ended, at most so long."""
        self._wait_while(lambda: self._is_coordinated, seconds)

    def _wait_while(self, is_due: Callable[[], bool], seconds: float) -> None:
        """Wait while a condition holds, at most so long."""
        awake = RunningClock(time.monotonic())
        while is_due() and awake.at(time.monotonic()) < seconds:
            time.sleep(POLL_S)

    def _await_address(self, follow: Callable[[], None]) -> str:
        """Return the address at which the coordinator listens, as soon as it does."""
        limit_s, awake = self._plan.run.cluster.start_timeout_s, RunningClock(time.monotonic())
        while not (address := address_in(self._plan.run_dir)):
            self.check()
            follow()
            if awake.at(time.monotonic()) > limit_s:
                raise RoleError(f"{FIRST} has not started listening after {limit_s:g} s{self._tail(FIRST)}")
            time.sleep(POLL_S)
        return address

    def _log_of(self, name: str) -> Path:
        return self._plan.run_dir / ROLES / f"{name}.log"

    def _lines(self, name: str) -> list[str]:
        """Return the lines of a replica's log; none if it was removed."""
        try:
            return self._log_of(name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def _errors(self, name: str) -> list[str]:
        """Return the errors that a replica has written to its log."""
        return [line.removeprefix(ERROR_LINE) for line in self._lines(name) if line.startswith(ERROR_LINE)]

    def _tail(self, name: str) -> str:
        """Return the end of a replica's log, as the end of a sentence."""
        lines = self._lines(name)[-TAIL_LINES:] or ["(nothing)"]
        return "; the end of its log:\n" + "\n".join(f"  {line}" for line in lines)
