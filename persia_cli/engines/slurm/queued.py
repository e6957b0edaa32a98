"""A job that was given to Slurm, as its run directory knows it."""

import json
import os
from contextlib import suppress
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.hosts.remote import last_words
from persia_cli.engines.job import ERROR_LINE, SUBMITTED, recorded_failure
from persia_cli.engines.slurm.programs import State, state_of, submit
from persia_cli.engines.slurm.script import LOG, script
from persia_cli.errors import ConfigError, PersiaError, PreemptedError, RoleError, UserError
from persia_cli.storage.credentials import VARIABLE

STATE, END, REQUEUES, SAVED = "job.json", "end", "requeues", "saved"
"""Files with the job's number, the exit code of its script, and what `turns` notes."""
TAIL_LINES = 20


def queue(run: Run, run_dir: Path) -> str:
    """Give a job to Slurm, and return its number; raises UserError if it cannot be, or if one of this run is there."""
    if os.environ.get(VARIABLE):
        raise ConfigError(
            "cluster=slurm keeps jobs in files, where credentials in URIs have no place; leave them to the environment "
            "(cluster.setup) or to the configuration of the store's tools"
        )
    _require_no_other(run_dir)
    text, folder = script(run, run_dir), run_dir.absolute() / SUBMITTED
    made = [each for each in (folder, folder.parent) if not each.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (END, LOG, REQUEUES, SAVED):
            (folder / name).unlink(missing_ok=True)
    try:
        job = submit(text, folder / LOG)
    except PersiaError:
        with suppress(OSError):
            for each in made:
                each.rmdir()
        raise
    _note(run_dir, job)
    return job


def take_up(run_dir: Path, job: str) -> None:
    """Note the job whose script runs, which may have been given to sbatch by hand, as the one of a run directory.

    Raises UserError if another one of this run is there.
    """
    if job_of(run_dir) != job:
        _require_no_other(run_dir)
        _note(run_dir, job)


def _require_no_other(run_dir: Path) -> None:
    """Raise UserError if Slurm has a job of a run that is not over."""
    before = job_of(run_dir)
    if before is not None and not state_of(before).is_over:
        raise UserError(f"Slurm has the job of {run_dir} already, as {before}; persia attach {run_dir} shows it")


def _note(run_dir: Path, job: str) -> None:
    folder = run_dir / SUBMITTED
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / STATE, json.dumps({"job": job}) + "\n")


def job_of(run_dir: Path) -> str | None:
    """Return the number of the job of a run directory; None if none was given to Slurm."""
    try:
        return str(json.loads((run_dir / SUBMITTED / STATE).read_text(encoding="utf-8"))["job"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{run_dir / SUBMITTED / STATE} is damaged; squeue and scancel know the job") from None


def require_job(run_dir: Path) -> str:
    """Return the same; raises UserError if there is none."""
    job = job_of(run_dir)
    if job is None:
        raise UserError(
            f"{run_dir} is not the run directory of a job with cluster=slurm: it has no {SUBMITTED}/{STATE}"
        )
    return job


def require_well(run_dir: Path, job: str, state: State) -> None:
    """Raise how the script of a job has ended, by what it has left, unless it was well."""
    code = _exit_code(run_dir)
    if code == 0:
        return
    if code == PreemptedError.exit_code:
        raise PreemptedError("a signal")
    log = run_dir / SUBMITTED / LOG
    try:
        said = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        said = ""
    failure = recorded_failure(run_dir) if code is not None else None
    raise _with_notes(failure, said) if failure is not None else _of_log(log, said, job, state, code)


def _with_notes(error: PersiaError, said: str) -> PersiaError:
    """Return an error with what the script has said after it: on which machine its replica was, and of its log."""
    lines = said.splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith(ERROR_LINE)), default=len(lines))
    if notes := lines[last + 1 :][-2 * TAIL_LINES :]:
        error.add_note("\n".join(notes))
    return error


def _of_log(log: Path, said: str, job: str, state: State, code: int | None) -> PersiaError:
    if code is not None:
        return _with_notes((UserError if code == UserError.exit_code else RoleError)(last_words(said)), said)
    error = RoleError(f"the job {job} of Slurm has ended ({state.name}), and its script has not said how; see {log}")
    error.add_note("\n".join(f"  {line}" for line in said.splitlines()[-TAIL_LINES:] or ["(nothing)"]))
    return error


def _exit_code(run_dir: Path) -> int | None:
    """Return the exit code of the script; None if it has left none, since it was killed or did not start."""
    try:
        return int((run_dir / SUBMITTED / END).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
