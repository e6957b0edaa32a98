"""The engine of `cluster=slurm`: a job in Slurm's queue, ended there, and given to it again by its own script."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.disk import writing
from persia_cli.engines.distributed import DistributedEngine
from persia_cli.engines.driver_process import LOG, driver_record, record_queued
from persia_cli.engines.resumed import DRIVER, newest_of
from persia_cli.engines.slurm.programs import (
    PENDING,
    RUNNING,
    SUSPENDED,
    WAITING,
    State,
    cancel,
    requeue,
    signal_script,
    state_of,
    submit,
)
from persia_cli.engines.slurm.script import script
from persia_cli.engines.slurm.steps import LostMachinesError, SlurmMachines, allocation_of
from persia_cli.errors import ConfigError, PersiaError, PreemptedError, RoleError, UserError
from persia_cli.plan.job import JobPlan
from persia_cli.storage.addresses import VARIABLE
from persia_cli.store.checkpoints.manifest import checkpoints_of, step_of

SLURM = "slurm"
IN_SCRIPT, RESTARTS = "SLURM_JOB_ID", "SLURM_RESTART_COUNT"
TIME_IS_OVER = "SIGUSR1"
"""The signal that Slurm sends before the end of the job's time."""
STATE_S = 3.0
"""Seconds between two questions to Slurm, which many jobs ask."""
LOST_S = 300.0
"""Seconds for which Slurm may not answer before a command gives up; the job goes on."""


class SlurmEngine(DistributedEngine):
    """An engine whose replicas are steps of a job of Slurm, and whose driver is the job's script."""

    ends_with_command = False
    driver_is_here = False

    def machines(self, plan: JobPlan) -> AbstractContextManager[SlurmMachines]:
        """Enter the machines of the allocation that this process is in."""
        return nullcontext(SlurmMachines(plan.run, allocation_of(os.environ)))

    def drives_here(self, is_point: bool) -> bool:
        """Return whether this command is in an allocation."""
        return bool(os.environ.get(IN_SCRIPT))

    def rendered(self, run: Run, run_dir: Path | None) -> str:
        """Return the script for sbatch."""
        return script(run, run_dir or Path("runs", run.name))

    def submit(self, run: Run, run_dir: Path, overrides: Sequence[str]) -> str:
        """Queue the job, whose script begins or goes on by itself."""
        return f"job {queue(run, run_dir)} of Slurm"

    def script_job(self, run_dir: Path) -> str:
        """Return the number of the job whose script this process is; raises UserError if another job has the run."""
        if not (job := os.environ.get(IN_SCRIPT, "")):
            raise UserError(f"--scheduler slurm is for the script of a job of Slurm: {IN_SCRIPT} is not set")
        require_no_other(run_dir, job)
        return job

    def scheduled_driver(self, job: str) -> "QueuedDriver":
        """Return the driver that is a job's script."""
        return QueuedDriver(job)

    def scheduled_again(self, plan: JobPlan, report: Callable[[str], None]) -> AbstractContextManager[None]:
        """Queue the job again if its time is over in the block, or machines are lost."""
        return queued_again(plan, os.environ, report) if self.drives_here(is_point=False) else nullcontext()


def queue(run: Run, run_dir: Path) -> str:
    """Give a job to Slurm, and return its number; raises UserError if it cannot be, or if one of this run is there."""
    if os.environ.get(VARIABLE):
        raise ConfigError(
            "cluster=slurm keeps jobs in files, where credentials in URIs have no place; leave them to the environment "
            "(cluster.setup) or to the configuration of the store's tools"
        )
    require_no_other(run_dir)
    text, folder = script(run, run_dir), run_dir.absolute() / DRIVER
    new_folders = [path for path in (folder, folder.parent) if not path.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG).unlink(missing_ok=True)
    try:
        job = submit(text, folder / LOG)
    except PersiaError:
        with suppress(OSError):
            for path in new_folders:
                path.rmdir()
        raise
    record_queued(run_dir, SLURM, job)
    return job


def require_no_other(run_dir: Path, script_job: str = "") -> None:
    """Raise UserError if Slurm has a job of a run that is not over, and is not the `own` one."""
    before = driver_record(run_dir)
    if before and before.scheduler == SLURM and before.job != script_job and not state_of(before.job).is_over:
        raise UserError(f"Slurm has the job of {run_dir} already, as {before.job}; persia attach {run_dir} shows it")


class QueuedDriver:
    """The script of a job as a command sees it, which asks Slurm now and then."""

    def __init__(self, job: str) -> None:
        self._job, self._state = job, State(PENDING)
        self._requested_s, self._answered_s = 0.0, time.monotonic()

    @property
    def running(self) -> bool:
        """True until the job is over, so also while it waits."""
        return not self._known().is_over

    @property
    def waits_for(self) -> str:
        """The reason why the job does not run, if that is so."""
        state = self._known()
        if state.name == PENDING:
            return f"waiting in the queue: {state.reason or 'its turn'}"
        return "" if state.name == RUNNING or state.is_over else state.name.lower()

    def stop(self, at_once: bool) -> None:
        """Have the script save the model and end, or end `at_once`; a job that waits leaves the queue."""
        state = state_of(self._job)
        if state.name in SUSPENDED and not at_once:
            raise UserError(
                f"the job {self._job} of Slurm is {state.name.lower()}, and cannot save its model: have it go on "
                "(scontrol resume), or end it with --now"
            )
        if state.name == RUNNING:
            signal_script(self._job, "INT" if at_once else "TERM")
        elif state.name in (*SUSPENDED, *WAITING):
            cancel(self._job)

    def kill(self) -> None:
        """End the job."""
        cancel(self._job)

    def _known(self) -> State:
        """Return the state at the last question; raises RoleError if Slurm does not answer for long."""
        now = time.monotonic()
        if now - self._requested_s < STATE_S and self._requested_s:
            return self._state
        self._requested_s = now
        try:
            self._state, self._answered_s = state_of(self._job), now
        except RoleError as error:
            if now - self._answered_s > LOST_S:
                error.add_note(f"The job {self._job} of Slurm goes on.")
                raise
        return self._state


@contextmanager
def queued_again(plan: JobPlan, environment: Mapping[str, str], say: Callable[[str], None]) -> Iterator[None]:
    """Queue the job of this script again if its time is over in the block, or machines are lost.

    That happens `recovery.max_restarts` times, and whenever the model was saved at a later step than this turn
    began with.
    """
    try:
        yield
    except (PreemptedError, LostMachinesError) as end:
        if isinstance(end, LostMachinesError) or str(end) == TIME_IS_OVER:
            newest = newest_of(checkpoints_of(plan.run_dir, plan.run.checkpoint.path))
            further = newest is not None and step_of(newest) > plan.job.first_step
            if further or int(environment.get(RESTARTS, "0")) < plan.run.recovery.max_restarts:
                _queue_again(environment[IN_SCRIPT], str(end), say)
        raise


def _queue_again(job: str, why: str, say: Callable[[str], None]) -> None:
    """Have Slurm queue a job again, which ends this process; if Slurm refuses that, the job is over."""
    say(f"{why}: the job is queued again")
    try:
        requeue(job)
    except RoleError as refused:
        say(f"the job is not queued again: {refused}")
