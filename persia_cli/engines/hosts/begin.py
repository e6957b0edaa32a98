"""Jobs on machines that ssh reaches, as commands get at them: begun, gone on with, or found where they run."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from persia_cli.config.record import read_run, write_run
from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.hosts.follower import FILE, note_follower
from persia_cli.engines.hosts.job import FIRST, HostsJob
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.engines.job import JOB, ROLES, anchored
from persia_cli.engines.key_files import require_given_keys
from persia_cli.engines.resumed import locked
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS

STATE = "hosts.json"
"""File of a run directory with the name of the job's folder on its machines, and how often the job was started."""

Say = Callable[[str], None]


@contextmanager
def begun(run: Run, run_dir: Path, say: Say, say_start: Say, number: int = 1) -> Iterator[HostsJob]:
    """Start a job, whose run directory here is free, and yield it; if it does not start, nothing is left running.

    With a `number` above 1 its coordinator goes on with the run whose record is at `checkpoint.path`. Both functions
    are called with sentences: on what happens, and on what is being started.
    """
    require_given_keys(run.cluster)
    job = HostsJob(run, run_dir, f"{run_dir.absolute().name}-{secrets.token_hex(3)}", number, say)
    made = [folder for folder in (run_dir / ROLES, run_dir) if not folder.exists()]
    with writing(run_dir):
        (run_dir / ROLES).mkdir(parents=True)
    try:
        with locked(run_dir), _started(job, say_start):
            yield job
    except BaseException:
        if not job.has_begun:
            with suppress(OSError):  # with logs in it, a folder is worth keeping
                for folder in made:
                    folder.rmdir()
        raise


@contextmanager
def gone_on(run: Run, run_dir: Path, say: Say, say_start: Say) -> Iterator[HostsJob]:
    """Start a job again, from its newest checkpoint, as `begun`.

    Raises UserError if it still runs, or if its record is on another machine than the coordinator is to be.
    """
    require_given_keys(run.cluster)
    # Only the coordinator's machine is asked: another one may be why the job starts again.
    with found(run_dir, say, [FIRST]) as before:
        if before.running:
            raise UserError(f"the job of {run_dir} still runs; persia attach {run_dir} shows it, persia stop ends it")
        then, now = (next(iter(placement.values())).ssh for placement in (before.placement, placement_of(run)))
        if then != now:
            raise UserError(f"the record of the run is on {then}, so {FIRST} has to run there and not on {now}")
    with locked(run_dir):
        if _state_of(run_dir) != (before.name, before.number):
            raise UserError(f"another command has just started the job of {run_dir}; persia attach {run_dir} shows it")
        kept = {left: (run_dir / left).read_bytes() for left in (EVENTS, JOB) if (run_dir / left).exists()}
        for left in kept:
            (run_dir / left).unlink()
        job = HostsJob(run, run_dir, before.name, before.number + 1, say)
        try:
            with _started(job, say_start):
                yield job
        except BaseException:
            # A start that ended early may have left no record: then that of the one before says what was saved.
            _put_back(run_dir, {name: old for name, old in kept.items() if _is_free(run_dir / name, job)})
            raise


def _is_free(file: Path, job: HostsJob) -> bool:
    return not job.has_begun or not file.exists() or not file.stat().st_size


@contextmanager
def found(run_dir: Path, say: Say, replicas: Sequence[str] = ()) -> Iterator[HostsJob]:
    """Yield a job that was started before, with what the machines of these replicas know, by default of all.

    Its record is copied unless another command does that already. Raises UserError if there is none.
    """
    name, number = _state_of(run_dir)
    try:
        with locked(run_dir):
            copies = True
    except UserError:
        copies = False
    job = HostsJob(run_of(run_dir), run_dir, name, number, say, copies)
    try:
        job.find(replicas)
        yield job
    finally:
        job.close()


def run_of(run_dir: Path) -> Run:
    """Return the configuration of a job that was started before; raises UserError if there is none."""
    _state_of(run_dir)
    return read_run(run_dir / CONFIG)


def _state_of(run_dir: Path) -> tuple[str, int]:
    """Return the name of the job's folder on its machines, and the number of its last start."""
    try:
        state = json.loads((run_dir / STATE).read_text(encoding="utf-8"))
        return str(state["job"]), int(state["starts"])
    except FileNotFoundError:
        raise UserError(f"{run_dir} is not the run directory of a job with cluster=hosts: it has no {STATE}") from None
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{run_dir / STATE} is damaged: it does not say which job runs on the machines") from None


@contextmanager
def _started(job: HostsJob, say_start: Say) -> Iterator[None]:
    """Start a job; if it is refused before anything runs, the run directory says again what it said before."""
    before = {
        name: path.read_bytes() if (path := job.run_dir / name).exists() else None for name in (CONFIG, STATE, FILE)
    }
    note_follower(job.run_dir)
    write_run(anchored(job.run), job.run_dir / CONFIG)
    write_whole(job.run_dir / STATE, json.dumps({"job": job.name, "starts": job.number}) + "\n")
    try:
        try:
            job.start(say_start)
        except BaseException:
            job.stop()
            if not job.has_begun:
                _put_back(job.run_dir, before)
            raise
        yield
    finally:
        job.close()


def _put_back(run_dir: Path, files: Mapping[str, bytes | None]) -> None:
    for name, content in files.items():
        if content is None:
            (run_dir / name).unlink(missing_ok=True)
        else:
            write_whole(run_dir / name, content)
