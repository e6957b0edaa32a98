"""A job in its allocation: a step for each replica, started, looked after, ended."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.control.restarts import RestartPolicy
from persia_cli.disk import writing
from persia_cli.engines.background import LOG
from persia_cli.engines.configuration import configuration
from persia_cli.engines.handed_over import text_of
from persia_cli.engines.hosts.remote import last_words
from persia_cli.engines.job import ROLES, SUBMITTED, JobResult, recorded_failure, result_of
from persia_cli.engines.role_words import Placed
from persia_cli.engines.slurm.allocation import Allocation, listening_address
from persia_cli.engines.slurm.machines import places_of
from persia_cli.engines.slurm.step import step_command
from persia_cli.engines.slurm.step_process import WELL, StepProcess
from persia_cli.errors import PersiaError, PreemptedError, RoleError, UserError
from persia_cli.plan.job import COORDINATOR, Replica
from persia_cli.plan.replacement import RESTARTED
from persia_cli.wire.secret import JobKeys

FIRST = Replica(COORDINATOR, 0)
POLL_S = 0.1
START_S = 600.0
"""Seconds for the coordinator to look at the data and to listen."""


class AllocatedJob:
    """One start of a job; `poll` has to be called all the time."""

    def __init__(
        self, run: Run, run_dir: Path, allocation: Allocation, keys: JobKeys, say: Callable[[str], None]
    ) -> None:
        """`say` is called with sentences for people. Raises RoleError if a part of the machines is lost."""
        self.run, self.run_dir = run, run_dir
        self._allocation, self._keys, self._say = allocation, keys, say
        lost = allocation.lost(say)
        self._places = places_of(run)
        self._nodes = {replica: allocation.node_of(place, lost) for replica, place in self._places.items()}
        self._steps: dict[Replica, StepProcess] = {}
        self._policy = RestartPolicy(run.recovery.max_restarts, run.recovery.window_s)
        self._due_s: dict[Replica, float] = {}
        self._failed_s: float | None = None

    def start(self) -> None:
        """Start all steps, the coordinator's first; raises the failure of that one if it does not come to listen."""
        nodes = list(dict.fromkeys(self._nodes.values()))
        for node in nodes:
            self._say(f"{node}: {', '.join(each.name for each, at in self._nodes.items() if at == node)}")
        first = self._nodes[FIRST]
        address = listening_address(first, [node for node in nodes if node != first])
        with writing(self.run_dir):
            (self.run_dir / SUBMITTED).mkdir(parents=True, exist_ok=True)
        early = self.run_dir / SUBMITTED / f"{FIRST.name}{LOG}"
        early.unlink(missing_ok=True)
        step = self._start(FIRST, f"tcp://{address}:*", early, configuration(self.run))
        begin = time.monotonic()
        while not step.listens_at and step.exit_code != 0:
            if step.exit_code is not None:
                raise step.failure()
            if time.monotonic() - begin > START_S:
                overdue = RoleError(f"{FIRST.name} on {first} does not listen after {START_S:g} s")
                overdue.add_note(step.tail())
                raise overdue
            time.sleep(POLL_S)
        if not step.listens_at:
            return  # all is done already
        # Only now is the folder there: a coordinator makes it, and moves that of an earlier start aside.
        step.move_log(self._log_of(FIRST))
        for replica in self._places:
            if replica != FIRST:
                self._start(replica, step.listens_at, self._log_of(replica))

    def _start(self, replica: Replica, coordinator: str, log: Path, config: str = "") -> StepProcess:
        allocation, node = self._allocation, self._nodes[replica]
        at = Placed(coordinator, run_dir=str(self.run_dir.absolute()))
        group = allocation.group_of(self._places[replica])
        command = step_command(self.run, replica, group, node, at)
        self._steps[replica] = step = StepProcess(replica.name, node, command, text_of(self._keys, config), log)
        return step

    @property
    def running(self) -> bool:
        """True until the coordinator has ended."""
        return self._steps[FIRST].exit_code is None

    @property
    def has_begun(self) -> bool:
        """True once the coordinator has listened."""
        return FIRST in self._steps and bool(self._steps[FIRST].listens_at)

    @property
    def last_words(self) -> str:
        """Why the coordinator has ended."""
        return last_words(self._steps[FIRST].said)

    def poll(self) -> None:
        """Start steps again that were killed, where they were; the coordinator decides what comes of that.

        Raises the failure of a replica whose machine is lost, or that has ended for good while the coordinator goes on
        without noticing.
        """
        now = time.monotonic()
        for replica, step in self._steps.items():
            code = step.exit_code
            if replica == FIRST or code is None or code in WELL:
                continue
            if step.is_lost and self.running:
                self._start_again_when_due(replica, now)
                continue
            if code == UserError.exit_code and self.running:
                failure = step.failure()
                failure.add_note(step.tail())
                raise failure
            self._failed_s = self._failed_s or now
            if now - self._failed_s > self.run.cluster.silence_timeout_s and self.running:
                raise step.failure()

    def _start_again_when_due(self, replica: Replica, now: float) -> None:
        step = self._steps[replica]
        if replica.role not in RESTARTED:
            raise step.failure()  # its memory is lost with it
        if replica not in self._due_s:
            wait_s = self._policy.next(replica.name, now)
            if wait_s is None:
                raise step.failure()
            self._say(f"{step.failure()}; it gets a new step{f' in {wait_s:g} s' if wait_s else ''}")
            self._due_s[replica] = now + wait_s
        if now >= self._due_s[replica]:
            del self._due_s[replica]
            if step.node in self._allocation.lost(self._say):
                raise RoleError(f"{replica.name}: its machine {step.node} is lost")
            step.close()
            self._start(replica, self._steps[FIRST].listens_at, self._log_of(replica))

    def signal(self, name: str, replicas: Sequence[str]) -> None:
        """Send a signal to replicas."""
        for replica, step in self._steps.items():
            if replica.name in replicas:
                step.signal(signal.Signals[name])

    def result(self) -> JobResult:
        """Return the result of a job whose coordinator has ended well; raises PreemptedError if a signal ended it."""
        if self._steps[FIRST].exit_code == PreemptedError.exit_code:
            raise PreemptedError("a signal")
        return result_of(self.run_dir)

    def check(self) -> None:
        """Raise the failure that ended the coordinator, if there was one."""
        if self._steps[FIRST].exit_code in (None, *WELL):
            return
        failure: PersiaError = recorded_failure(self.run_dir) or self._steps[FIRST].failure()
        for replica, step in self._steps.items():
            if replica.name in str(failure) and replica != FIRST:
                failure.add_note(step.tail())
        raise failure

    def stop(self) -> None:
        """End what still runs; what has heard that the job is over ends by itself."""
        limit_s = self.run.cluster.stop_timeout_s
        if self.has_begun and self._steps[FIRST].exit_code in WELL:
            self._wait(limit_s)
        for step in self._steps.values():
            if step.exit_code is None:
                step.end()
        self._wait(limit_s)
        for step in self._steps.values():
            step.close()

    def _wait(self, seconds: float) -> None:
        begin = time.monotonic()
        while any(step.exit_code is None for step in self._steps.values()) and time.monotonic() - begin < seconds:
            time.sleep(POLL_S)

    def _log_of(self, replica: Replica) -> Path:
        return self.run_dir / ROLES / f"{replica.name}{LOG}"
