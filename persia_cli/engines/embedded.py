"""The engine that runs all roles as threads of this process, for tests, notebooks and small runs."""

import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from persia_cli.engines.driver import drive
from persia_cli.engines.engine import Engine
from persia_cli.engines.job import SWITCH_INTERVAL_S, JobResult, recorded_failure
from persia_cli.engines.kernels import Compiling
from persia_cli.plan.job import JobPlan, Replica
from persia_cli.wire.sockets import Context

if TYPE_CHECKING:
    from persia_cli.roles.start import Stoppable


class EmbeddedEngine(Engine):
    """An engine whose replicas are threads of the command."""

    def launch(self, plan: JobPlan, follow: Callable[[], None] = lambda: None) -> JobResult:
        """Run a job to its end in this process."""
        return drive(plan, EmbeddedJob, follow)

    def logs_line(self, name: str, role: str) -> str:
        """Return where the output of replicas goes."""
        return "the replicas of cluster=embedded are threads of the command, and write to its output"


class EmbeddedJob:
    """The threads of one job; `stop` ends all of them, so jobs can run one after another or side by side."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._context = Context()
        self._coordinator = f"inproc://{uuid.uuid4()}"
        self._coordinators: list[Stoppable] = []
        self._stoppables: list[Stoppable] = []
        self._errors: list[BaseException] = []
        self._closing = False
        self._switch_interval_s = sys.getswitchinterval()
        # In CPython 3.11, a thread counts as ended if an interrupt comes while it is joined. So use these events.
        self._ended = [threading.Event() for _ in plan.replicas]
        self._threads = [
            threading.Thread(target=self._run, args=(replica, ended), name=replica.name)
            for replica, ended in zip(plan.replicas, self._ended, strict=True)
        ]

    def start(self, follow: Callable[[], None] = lambda: None) -> None:
        """Compile the kernels that are missing, and start all threads."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with closing(Compiling(self._plan)) as kernels:
            kernels.compile(follow)
        # Imported here once: two threads that import the same modules at the same time may each see half of a type.
        import persia_cli.roles.start  # noqa: F401

        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        """True if any thread still runs and none has failed."""
        return not self._errors and not all(ended.is_set() for ended in self._ended)

    def poll(self) -> None:
        """Do nothing: the threads need no help."""

    def end_with_model(self) -> None:
        """Have the coordinator, once it has started, save the model and end the job because of a signal."""
        for coordinator in self._coordinators:
            coordinator.signals.append("SIGUSR1")

    def wait(self, seconds: float) -> None:
        """Wait until all threads have ended, at most so many seconds."""
        deadline = time.monotonic() + seconds
        for ended in self._ended:
            ended.wait(max(0.0, deadline - time.monotonic()))

    def check(self) -> None:
        """Raise the first failure, if there was one, once all have had time to end because of it."""
        if self._errors:
            self._closing = True
            self.wait(self._plan.run.cluster.stop_timeout_s)
            self.stop()
            raise recorded_failure(self._plan.run_dir) or self._errors[0]

    def stop(self) -> None:
        """Stop the threads that still run."""
        self._closing = True
        sys.setswitchinterval(self._switch_interval_s)
        # The coordinator stops first and notifies the others. Otherwise it would report them as missing.
        for coordinator in self._coordinators:
            coordinator.stop = True
            self._ended[0].wait(self._plan.run.cluster.stop_timeout_s)
        for stoppable in self._stoppables:
            stoppable.stop = True
        for ended, thread in zip(self._ended, self._threads, strict=True):
            if thread.ident is not None:
                ended.wait()
                thread.join()
        self._context.term()

    def _add(self, started: "Stoppable", to: "list[Stoppable]") -> None:
        """Note a role that has just started; one that starts while the job is closed stops at once."""
        to.append(started)
        if self._closing:
            started.stop = True

    def _run(self, replica: Replica, ended: threading.Event) -> None:
        from persia_cli.roles.start import RoleStart, run_coordinator, run_role

        try:
            if replica.role == "coordinator":
                run_coordinator(
                    self._context,
                    self._coordinator,
                    self._plan.run,
                    self._plan.job,
                    on_start=lambda coordinator, _: self._add(coordinator, self._coordinators),
                )
            else:
                start = RoleStart(replica.role, replica.index, self._coordinator)
                run_role(self._context, start, lambda role: self._add(role, self._stoppables))
        except Exception as error:
            self._errors.append(error)
        finally:
            ended.set()
