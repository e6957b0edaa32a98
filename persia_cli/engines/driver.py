"""The driver's loop, from the preparation of the run directory to the recorded end of the job."""

import shutil
import time
from collections.abc import Callable
from typing import Protocol

from persia_cli.control.membership import RunningClock
from persia_cli.engines.job import ROLES, JobResult, prepared_run_dir, recorded_end, result_of
from persia_cli.engines.output import keep_output
from persia_cli.engines.signals import JobSignals
from persia_cli.errors import RoleError
from persia_cli.plan.job import JobPlan
from persia_cli.store.checkpoints.claim import remove_unfinished_of
from persia_cli.store.cold.folders import run_folder

POLL_S = 0.1


class StartedJob(Protocol):
    """The replicas of a job, as an engine runs them."""

    def start(self, follow: Callable[[], None]) -> None:
        """Start all replicas; where that takes long, `follow` is called meanwhile."""

    @property
    def running(self) -> bool:
        """True until the job has ended or has failed."""

    def poll(self) -> None:
        """Do what is due, such as to replace a process that has died."""

    def wait(self, seconds: float) -> None:
        """Wait until the job has ended, at most so long."""

    def end_with_model(self) -> None:
        """Have the coordinator save the model and end the job; called again until it has."""

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one."""

    def stop(self) -> None:
        """End all replicas that still run."""


def drive(plan: JobPlan, begin: Callable[[JobPlan], StartedJob], follow: Callable[[], None]) -> JobResult:
    """Run a job to its end, calling `follow()` from this thread about ten times a second.

    `begin` gets the plan with absolute paths once the run directory is prepared. Ctrl-C stops the job and is raised
    again. Signals are handled as JobSignals does; then PreemptedError is raised. Raises the failure of the replica that
    failed first, KilledError if it was killed.
    """
    signals = JobSignals()
    limit_s = plan.run.checkpoint.grace_s + plan.run.cluster.stop_timeout_s
    with signals.handled(), prepared_run_dir(plan) as prepared, recorded_end(plan.run_dir, signals):
        keep_output(plan.run_dir / ROLES)
        job = begin(prepared)
        try:
            job.start(follow)
            signals.trains = True
            saving: RunningClock | None = None
            while job.running:
                if signals.name:
                    job.end_with_model()
                    saving = saving or RunningClock(time.monotonic())
                    if saving.at(time.monotonic()) > limit_s:
                        raise RoleError(f"coordinator-0 has not ended the job within {limit_s:g} s of a signal")
                job.poll()
                follow()
                job.wait(POLL_S)
            job.check()
        finally:
            try:
                job.stop()
            finally:
                remove_unfinished_of(plan.run_dir, plan.run.checkpoint.path)
                if plan.run.embedding.cold is not None:  # servers that were killed have left their files
                    shutil.rmtree(run_folder(plan.run.embedding.cold.path, plan.run_dir), ignore_errors=True)
                follow()
    return result_of(plan.run_dir)
