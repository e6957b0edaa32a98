"""Jobs on machines that ssh reaches, as commands get at them: begun, gone on with, or found where they run."""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from persia_cli.config.record import read_run, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.configuration import handed_over_run
from persia_cli.engines.hosts.job import FIRST, HostsJob
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.errors import UserError
from persia_cli.launch.job import JOB, ROLES
from persia_cli.launch.resumed import locked
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS

STATE = "hosts.json"
"""File of a run directory with the name of the job's folder on its machines, and how often the job was started."""

Say = Callable[[str], None]


@contextmanager
def begun(run: Run, run_dir: Path, say: Say, say_start: Say) -> Iterator[HostsJob]:
    """Start a job, whose run directory here is free, and yield it; if it does not start, nothing is left running.

    Both functions are called with sentences: on what happens, and on what is being started.
    """
    with writing(run_dir):
        (run_dir / ROLES).mkdir(parents=True)
    job = HostsJob(run, run_dir, f"{run_dir.absolute().name}-{secrets.token_hex(3)}", 1, say)
    with _started(job, say_start):
        yield job


@contextmanager
def gone_on(run: Run, run_dir: Path, say: Say, say_start: Say) -> Iterator[HostsJob]:
    """Start a job again, from its newest checkpoint, as `begun`.

    Raises UserError if it still runs, or if its record is on another machine than the coordinator is to be.
    """
    with found(run_dir, say) as before:
        if before.running:
            raise UserError(f"the job of {run_dir} still runs; persia attach {run_dir} shows it, persia stop ends it")
        then, now = (next(iter(placement.values())).ssh for placement in (before.placement, placement_of(run)))
        if then != now:
            raise UserError(f"the record of the run is on {then}, so {FIRST} has to run there and not on {now}")
        name, number = before.name, before.number + 1
    for left in (EVENTS, JOB):
        (run_dir / left).unlink(missing_ok=True)
    with _started(HostsJob(run, run_dir, name, number, say), say_start) as job:
        yield job


@contextmanager
def found(run_dir: Path, say: Say) -> Iterator[HostsJob]:
    """Yield a job that was started before; its record is copied unless another command does that already.

    Raises UserError if there is none.
    """
    try:
        state = json.loads((run_dir / STATE).read_text(encoding="utf-8"))
        name, number = str(state["job"]), int(state["starts"])
    except (OSError, ValueError, LookupError):
        raise UserError(f"{run_dir} is not the run directory of a job with cluster=hosts: it has no {STATE}") from None
    try:
        with locked(run_dir):
            copies = True
    except UserError:
        copies = False
    job = HostsJob(read_run(run_dir / CONFIG), run_dir, name, number, say, copies)
    try:
        job.find()
        yield job
    finally:
        job.close()


@contextmanager
def _started(job: HostsJob, say_start: Say) -> Iterator[HostsJob]:
    write_run(handed_over_run(job.run), job.run_dir / CONFIG)
    write_whole(job.run_dir / STATE, json.dumps({"job": job.name, "starts": job.number}) + "\n")
    try:
        with locked(job.run_dir):
            try:
                job.start(say_start)
            except BaseException:
                job.stop()
                raise
            yield job
    finally:
        job.close()
