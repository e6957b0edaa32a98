"""The record of a run that is resumed: what was written after the checkpoint goes, the rest is kept."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from persia_cli.disk import claim_folder, is_held, rename, sync, write_whole, writing
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.history import EARLIER
from persia_cli.observe.journal import EVENTS, METRICS, is_being_written, object_of
from persia_cli.plan.job import JobPlan
from persia_cli.storage.places import Place, place_of
from persia_cli.store.checkpoints.claim import CLAIM
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder, finished_steps, read_manifest
from persia_cli.store.checkpoints.retention import remove_unfinished


def require_record(plan: JobPlan) -> int:
    """Return the size of the lines of metrics up to the checkpoint with which a job goes on.

    Raises CheckpointError if the record of the run is shorter than it was or edited, UserError if the run directory is
    another one and has files.
    """
    size, source = _metrics_bytes(plan), _source(plan)
    _require_lines(source / METRICS, size)
    if source != plan.run_dir.absolute() and any(path.name != CLAIM for path in plan.run_dir.iterdir()):
        raise UserError(
            f"{plan.run_dir.absolute()} contains other files; choose an empty folder or a new one as --run-dir"
        )
    return size


def take_up_record(plan: JobPlan, moved: Sequence[str], copied: Sequence[str]) -> None:
    """Prepare the run directory of a job that goes on from a checkpoint, which is its newest or is in another run.

    The files and folders `moved` and `copied` of the last start move to another folder. So are its lines of
    metrics after the checkpoint, which leave the record: those steps are trained again. The folder must be `locked`.
    Raises what `require_record` does before anything has changed, and DiskError.
    """
    size, source, run_dir = require_record(plan), _source(plan), plan.run_dir.absolute()
    if source == run_dir:
        folder = _set_aside(run_dir, moved, copied)
        if later := _content_after(run_dir / METRICS, size):
            write_whole(folder / METRICS, later)
    else:
        with writing(run_dir / METRICS):
            shutil.copyfile(source / METRICS, run_dir / METRICS)
    with writing(run_dir / METRICS):
        os.truncate(run_dir / METRICS, size)
        sync(run_dir / METRICS)


def _source(plan: JobPlan) -> Path:
    assert plan.job.load is not None
    return (plan.resumes or Path(plan.job.load).parents[1]).absolute()


def _metrics_bytes(plan: JobPlan) -> int:
    assert plan.job.load is not None
    return read_manifest(place_of(plan.job.load)).progress.metrics_bytes


def start_over(run_dir: Path, moved: Sequence[str]) -> None:
    """Move what a run without a checkpoint has recorded to a folder of its own, so that it can begin again.

    Half a checkpoint in the run directory goes too; one elsewhere goes when the run begins.

    Raises UserError if the run still goes on, DiskError.
    """
    with locked(run_dir):
        remove_unfinished(run_dir / CHECKPOINTS)
        _set_aside(run_dir, [METRICS, CHECKPOINTS, *moved], ())


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Raise UserError if a process writes the record of the run, or another one is in this context.

    A launcher is in it from before it prepares the folder until the end of its job, since the coordinator writes the
    record only from later on: kernels may have to be compiled first.
    """
    lock = os.open(run_dir, os.O_RDONLY)
    try:
        if _is_locked(lock) or ((run_dir / EVENTS).exists() and is_being_written(run_dir / EVENTS)):
            raise UserError(f"the run in {run_dir} still goes on, or is being resumed by another command")
        yield
    finally:
        os.close(lock)


def is_at_work(run_dir: Path) -> bool:
    """Return whether a launcher on this machine has locked the folder of a run, or a coordinator its events."""
    try:
        folder = os.open(run_dir, os.O_RDONLY)
    except OSError:
        return False  # It was removed, and a run whose folder is removed ends.
    try:
        return _is_locked(folder) or ((run_dir / EVENTS).exists() and is_being_written(run_dir / EVENTS))
    finally:
        os.close(folder)


def _is_locked(folder: int) -> bool:
    try:
        return is_held(folder)
    except OSError:
        return False  # Some network file systems lock no folders.


def _require_lines(metrics: Path, size: int) -> None:
    """Raise CheckpointError unless lines are whole up to `size`, where one ended when the checkpoint was saved."""
    found = metrics.stat().st_size if metrics.exists() else 0
    if found < size:
        raise CheckpointError(
            f"{metrics} has {found:,} bytes and had {size:,} when the checkpoint was saved: lines were removed; "
            "restore the file"
        )
    if not size:
        return
    with metrics.open("rb") as file:
        content = file.read(size)
    if not content.endswith(b"\n"):
        raise CheckpointError(f"{metrics} was edited: no line ends where one did at the checkpoint; restore the file")
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        if object_of(line) is None:
            raise CheckpointError(f"{metrics} is damaged: line {number} cannot be read; restore the file")


def _content_after(metrics: Path, size: int) -> bytes:
    if not metrics.exists():
        return b""
    with metrics.open("rb") as file:
        file.seek(size)
        return file.read()


def _set_aside(run_dir: Path, moved: Sequence[str], copied: Sequence[str]) -> Path:
    with writing(run_dir / EARLIER):
        folder = claim_folder(run_dir / EARLIER / "start")
        for name in copied:
            if (run_dir / name).exists():
                write_whole(folder / name, (run_dir / name).read_bytes())
        for name in moved:
            if (run_dir / name).exists():
                rename(run_dir / name, folder / name)
    return folder


def newest_of(checkpoints: Place) -> Place | None:
    """Return the newest complete checkpoint of a run; None if it has none."""
    steps = finished_steps(checkpoints)
    return checkpoint_folder(checkpoints, steps[-1]) if steps else None
