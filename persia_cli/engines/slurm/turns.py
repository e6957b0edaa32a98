"""How far a job came before it ended early, and how often it may be queued again without having come further."""

from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.disk import write_whole, writing
from persia_cli.engines.job import SUBMITTED
from persia_cli.engines.slurm.machines import settings_of
from persia_cli.engines.slurm.queued import REQUEUES, SAVED
from persia_cli.observe.journal import EVENTS, read_journal


def got_further(run_dir: Path) -> bool:
    """Return whether the model is saved at a later step than at the last call for this job, and note the step.

    The record may still be that of an earlier start, if the last one ended before it had its own.
    """
    file = run_dir / SUBMITTED / SAVED
    newest = max((event["step"] for event in read_journal(run_dir / EVENTS) if event["event"] == "saved"), default=0)
    if newest <= _number_in(file):
        return False
    _write(file, newest)
    return True


def may_requeue(run: Run, run_dir: Path) -> bool:
    """Count one more time that a job is queued again without having got further; False if that is one too many."""
    file = run_dir / SUBMITTED / REQUEUES
    before = _number_in(file)
    if before >= settings_of(run).max_requeues:
        return False
    _write(file, before + 1)
    return True


def was_refused(run_dir: Path) -> None:
    """Take back the last count: Slurm has not queued the job again."""
    file = run_dir / SUBMITTED / REQUEUES
    _write(file, _number_in(file) - 1)


def _number_in(file: Path) -> int:
    return int(file.read_text(encoding="ascii")) if file.exists() else 0


def _write(file: Path, number: int) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, f"{number}\n")
