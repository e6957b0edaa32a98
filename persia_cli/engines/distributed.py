"""A job on several machines: the coordinator is a child of the driver, and an engine starts the other replicas."""

import signal
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from persia_cli.config.schema import Run
from persia_cli.engines.child import LOST
from persia_cli.engines.coordinated import FIRST, SETTLE_S, CoordinatedJob
from persia_cli.engines.driver import drive
from persia_cli.engines.driver_input import configuration, file_in_memory, input_text, keys_of_job
from persia_cli.engines.driver_process import start_driver
from persia_cli.engines.engine import Engine
from persia_cli.engines.job import (
    SIGNALLED,
    JobResult,
    record,
    recorded_failure,
    replicas_named,
    was_cut_off,
)
from persia_cli.engines.role_options import RoleOptions, arguments_of
from persia_cli.engines.supervisor import CLEAN_EXITS, Supervised
from persia_cli.errors import KilledError, MemoryFileError, PersiaError, RoleError, UserError
from persia_cli.plan.job import COORDINATOR, JobPlan, Replica

MOST_LOGS = 8
"""Replicas that a failure names whose logs are shown with it."""


class StartedReplica(Protocol):
    """A replica on its machine, as a supervisor runs it there."""

    machine: str

    def poll(self) -> None:
        """Take the progress since the last call."""

    @property
    def code(self) -> int | None:
        """Exit code of the supervisor as a shell has it, LOST if its machine is lost, None while it runs."""

    @property
    def why(self) -> str:
        """The reason of its end, as text."""

    def end(self) -> None:
        """End the replica."""

    def close(self) -> None:
        """Kill what still runs."""


class Machines(Protocol):
    """The machines of one start of a job, as an engine has them."""

    address: str
    """Of this machine, for the others."""

    def prepare(self, say: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        """Wait until the machines are there, calling `meanwhile` again and again."""

    def start(self, replica: Replica, arguments: list[str], given: str, log: Path) -> StartedReplica:
        """Start `persia` with these arguments on the replica's machine, with `given` as the beginning of its input."""


class DistributedEngine(Engine):
    """An engine that starts each replica on a machine that it has chosen; KilledError also means a lost machine.

    Its driver is a process of the command's machine, unless an engine overrides `submit`.
    """

    driver_is_here = True

    @abstractmethod
    def machines(self, plan: JobPlan) -> AbstractContextManager[Machines]:
        """Enter the machines of one start of a job."""

    def launch(self, plan: JobPlan, follow: Callable[[], None]) -> JobResult:
        """Run a job to its end from this process, its driver."""
        with self.machines(plan) as machines:
            return drive(plan, lambda prepared: DistributedJob(prepared, machines), follow)

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Start the driver as a process of this machine."""
        start_driver(run_dir, overrides, input_text(keys_of_job(), configuration(run)))
        return "another process runs the job"


class DistributedJob(CoordinatedJob):
    """The replicas of one start of a job."""

    def __init__(self, plan: JobPlan, machines: Machines) -> None:
        super().__init__(plan)
        self._machines = machines
        keys = keys_of_job()
        self._given = input_text(keys)
        self._key_file = file_in_memory(keys.secret.decode())
        self._started: dict[str, StartedReplica] = {}

    def start(self, follow: Callable[[], None]) -> None:
        """Start the coordinator, and all others once it listens; raises the failure of one that does not start."""
        self._machines.prepare(self._record, follow)
        run, (first, *others) = self._plan.run, self._plan.replicas
        options = RoleOptions(
            COORDINATOR,
            0,
            f"tcp://{self._machines.address}:*",
            run_dir=self._plan.run_dir.absolute(),
            key_file=self._key_file,
            cpus=run.cluster.processors_of(COORDINATOR, 0) or None,
        )
        self._coordinator = Supervised(options, None, log=self._log_of(first.name))
        address = self._await_address(follow)
        for replica in others:
            arguments, log = arguments_of(run, replica, address), self._log_of(replica.name)
            self._started[replica.name] = self._machines.start(replica, arguments, self._given, log)
            follow()

    def _record(self, text: str) -> None:
        record(self._plan.run_dir, event="note", text=text)  # no coordinator writes events yet

    @property
    def _coordinators_code(self) -> int | None:
        code = self._coordinator.process.poll() if self._coordinator else None
        return SIGNALLED - code if code is not None and code < 0 else code

    @property
    def _failed(self) -> dict[str, int]:
        """Exit codes of the replicas that have failed, the coordinator last."""
        ended = {name: started.code for name, started in self._started.items()} | {FIRST: self._coordinators_code}
        return {name: code for name, code in ended.items() if code is not None and code not in CLEAN_EXITS}

    @property
    def running(self) -> bool:
        """True if the coordinator runs and no replica has failed for good."""
        return self._coordinators_code is None and not self._failed

    def poll(self) -> None:
        """Receive the progress of all replicas."""
        for started in self._started.values():
            started.poll()

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one: KilledError if a process or a machine was lost."""
        if not self._failed:
            return
        self.wait(SETTLE_S)
        if self._coordinators_code in CLEAN_EXITS:
            return  # the job was done, and needed no replica any more
        self.poll()
        failed = self._failed
        for name, code in failed.items():
            # It was killed from outside, so this is the cause; errors of other replicas are consequences.
            if code > SIGNALLED or code == MemoryFileError.exit_code:
                raise self._killed(self._why(name, code), name)
        first, code = next(iter(failed.items()))
        recorded = recorded_failure(self._plan.run_dir)
        if recorded is None and was_cut_off(self._lines(first)) and self._coordinators_code is None:
            raise self._killed(f"{FIRST} was silent and therefore killed: {self._why(first, code)}", FIRST)
        if recorded is None:
            kind = UserError if code == UserError.exit_code else RoleError
            raise kind(self._why(first, code))
        named = [name for name in replicas_named(recorded) if name in self._started]
        if named and not isinstance(recorded, UserError):
            # A replica that has failed itself ends now; another one stands still, or is cut off.
            self._wait_for(named, SETTLE_S)
            if silent := [name for name in named if self._is_silent(name)]:
                raise self._with_logs(self._killed(str(recorded), silent[0]), named) from recorded
        raise self._with_logs(recorded, named)

    def _is_silent(self, name: str) -> bool:
        return self._started[name].code in (None, LOST) or was_cut_off(self._lines(name))

    def _killed(self, why: str, name: str) -> PersiaError:
        return RoleError(why) if self._saves else KilledError(why, name)

    def _with_logs(self, failure: PersiaError, names: Sequence[str]) -> PersiaError:
        """Return a failure with the machines of the replicas that it names, and the ends of their logs."""
        for name in names[:MOST_LOGS]:
            failure.add_note(f"{self._named(name)}{self._tail(name)}")
        if others := [self._named(name) for name in names[MOST_LOGS:]]:
            failure.add_note(f"{', '.join(others)}: persia logs {self._plan.run_dir}")
        return failure

    def _why(self, name: str, code: int) -> str:
        """Return how a replica ended, by its log."""
        if code == LOST:
            return f"{self._named(name)} is lost: {self._started[name].why}"
        if errors := self._errors(name):
            return f"{self._named(name)}: {errors[-1]}"
        by = f"by signal {code - SIGNALLED}" if code > SIGNALLED else f"with exit code {code}"
        return f"{self._named(name)} ended {by}{self._tail(name)}"

    def _named(self, name: str) -> str:
        return f"{name} on {self._started[name].machine}" if name in self._started else name

    def stop(self) -> None:
        """End all replicas: ask the coordinator, which notifies the others, then end the rest."""
        limit_s = self._plan.run.cluster.stop_timeout_s
        try:
            if self._coordinator:
                if self._coordinators_code not in CLEAN_EXITS:
                    self._coordinator.signal(signal.SIGINT)
                    self.wait(limit_s)
                self._wait_for(self._started, limit_s)
            for started in self._started.values():
                started.end()
            self._wait_for(self._started, limit_s)
        finally:
            if self._coordinator:
                self._coordinator.close()
            for started in self._started.values():
                started.close()

    def _wait_for(self, names: Iterable[str], seconds: float) -> None:
        """Wait until these replicas have ended, at most so long."""

        def some_run() -> bool:
            self.poll()
            return any(self._started[name].code is None for name in names)

        self._wait_while(some_run, seconds)
