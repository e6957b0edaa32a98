"""A job on other machines, or on several, as a command shows it to its end."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from persia_cli.commands.describe import model_words, training_words
from persia_cli.commands.progress import following
from persia_cli.commands.screen import err, labelled
from persia_cli.config.record import read_run
from persia_cli.config.schema import ENGINES, WITH_COMMAND, Run
from persia_cli.data.read.facts import DatasetFacts
from persia_cli.engines.job import JOB, JobResult
from persia_cli.engines.role import read_job
from persia_cli.engines.signals import JobSignals
from persia_cli.errors import PersiaError, RoleError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, read_journal, understanding
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import COORDINATOR, JobPlan, all_replicas

FIRST = f"{COORDINATOR}-0"
POLL_S = 0.1


class OverdueError(RoleError):
    """The coordinator has not ended the job in time after it was told to."""


class FollowedJob(Protocol):
    """A job that has been started."""

    run: Run
    run_dir: Path

    @property
    def running(self) -> bool:
        """True until the job has ended."""

    def poll(self) -> None:
        """Do what is to be done all the time."""

    def signal(self, name: str, replicas: Sequence[str]) -> None:
        """Send a signal to replicas."""

    def check(self) -> None:
        """Raise the failure that ended the job, if there was one."""

    def result(self) -> JobResult:
        """Return the result of a job that has ended well; raises PreemptedError if a signal ended it."""


def to_its_end(job: FollowedJob, signals: JobSignals) -> JobResult:
    """Show a job until its coordinator has ended, pass signals on to that, and return or raise what came of it."""
    plan, run = plan_of(job.run_dir), job.run
    saving_s: float | None = None
    with following(err(), job.run_dir, plan.job, run.train.batch_size) as follow:
        while job.running:
            job.poll()
            if signals.name and saving_s is None:
                job.signal("SIGUSR1", [FIRST])
                saving_s = time.monotonic()
            limit_s = run.checkpoint.grace_s + run.cluster.stop_timeout_s
            if saving_s is not None and time.monotonic() - saving_s > limit_s:
                raise OverdueError(f"{FIRST} has not ended the job within {limit_s:g} s of a signal; see its log")
            follow()
            time.sleep(POLL_S)
        job.poll()
        follow()
    job.check()
    return job.result()


def plan_of(run_dir: Path) -> JobPlan:
    """Return the plan of a job by what its coordinator has recorded; what only it knows of the data is left out."""
    run, job = read_run(run_dir / CONFIG), read_job(run_dir / JOB)
    # This machine may not reach the store of the checkpoints, so nothing here looks there.
    run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"path": None})})
    facts = DatasetFacts(job.train_rows, job.eval_rows, 0, (), 0, "")
    return JobPlan(run, facts, job, all_replicas(run), embedding_layout(run))


def show_beginning(run: Run, run_dir: Path) -> None:
    """Print what is known of a job before its machines know it."""
    labelled(err(), "run", f"{run.name} in {run_dir}")
    labelled(err(), "model", model_words(run))
    labelled(err(), "training", training_words(run))


def going_on(run_dir: Path) -> str:
    """Return in words what goes on with a job that was ended early, by its record."""
    with understanding(run_dir):
        saved = [event["path"] for event in read_journal(run_dir / EVENTS) if event["event"] == "saved"]
    newest = saved[-1] if saved else _begun_with(run_dir)
    if newest is None:
        return f"nothing was saved; {run_dir} keeps the metrics"
    return f"the model is saved in {newest}; persia resume {run_dir} goes on from there"


def _begun_with(run_dir: Path) -> str | None:
    """Return the checkpoint of its own with which the last start of a run began; None if that is not sure."""
    with suppress(PersiaError):
        kind = read_run(run_dir / CONFIG).cluster.kind
        # Those that a command runs may have begun with a checkpoint of another run.
        return read_job(run_dir / JOB).load if kind in ENGINES and kind not in WITH_COMMAND else None
    return None
