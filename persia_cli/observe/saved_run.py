"""The lookup of a saved model: a run directory, or one of its checkpoints."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from persia_cli.config.expected import is_changeable
from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.disk import read_regular
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.history import CONFIG, COPIED, EARLIER
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.observe.remote_records import copied_here
from persia_cli.plan.job import JOB, Job
from persia_cli.plan.saved_model import differences
from persia_cli.storage.locations import Location, address_of, location_of
from persia_cli.store.checkpoints.claim import remove_unfinished_of, writer_of
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    MANIFEST,
    Manifest,
    checkpoints_of,
    finished_steps,
    newest_checkpoint,
    read_manifest,
    unfinished_folders,
)
from persia_cli.store.checkpoints.retention import choose_checkpoint


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint whose manifest has been checked, and its run."""

    run_dir: Path
    checkpoint: Location
    run: Run

    @property
    def checkpoints(self) -> Location:
        """The folder of all checkpoints of the run."""
        return self.checkpoint.parent

    @property
    def config(self) -> Path:
        """The file of the run's configuration."""
        return self.run_dir / CONFIG


def find_model(folder: Location, step: int | None = None, newest: bool = False) -> SavedModel:
    """Return the model in `folder`, a run directory or a checkpoint of a run.

    Of a run it is the checkpoint of `step`, with `newest` the newest one, else the best, or the newest without a best.

    Unfinished checkpoints of a killed run are removed, but not with `newest`: a resumed run removes them when it
    begins. Raise UserError for a folder that is neither, CheckpointError for a checkpoint that does not exist, is
    damaged, or was trained with other settings than those in the run's file.
    """
    checkpoint, run_dir = locate_model(folder, step, newest)
    if run_dir is None:
        raise UserError(f"{folder} is a checkpoint without its run: {_missing(checkpoint)}")
    run = read_run(run_dir / CONFIG)
    if not newest and unfinished_folders(checkpoint.parent) and not is_being_written(run_dir / EVENTS):
        remove_unfinished_of(run_dir, run.checkpoint.path)
    is_of_run = address_of(checkpoint.parent) == address_of(checkpoints_of(run_dir, run.checkpoint.path))
    _require_same(run_dir / CONFIG, run, read_manifest(checkpoint), is_of_run)
    return SavedModel(run_dir, checkpoint, run)


def locate_model(folder: Location, step: int | None = None, newest: bool = False) -> tuple[Location, Path | None]:
    """Return the selected checkpoint, and its run directory if it is in one, else a copy of the run's record.

    Raises UserError for a folder that is neither, CheckpointError for a run without such a checkpoint.
    """
    if (folder / MANIFEST).is_file():
        if step is not None:
            raise UserError(f"{folder} is a checkpoint already; leave out --step, or give the run directory")
        run_dir = _run_of(folder)
        return folder, run_dir if run_dir and (run_dir / CONFIG).is_file() else None
    if not (folder / CONFIG).is_file() and finished_steps(folder):
        checkpoint = newest_checkpoint(folder) if newest else choose_checkpoint(folder, step)
        return checkpoint, _run_of(checkpoint)
    if not isinstance(folder, Path) or not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is neither a run directory nor a checkpoint: it has no {CONFIG} and no {MANIFEST}; "
            "give the folder that persia train named at its start"
        )
    checkpoints = checkpoints_of(folder, read_run(folder / CONFIG).checkpoint.path)
    return newest_of_run(folder) if newest else choose_checkpoint(checkpoints, step), folder


def newest_of_run(run_dir: Path) -> Location:
    """Return the checkpoint from which a run would continue, in any place.

    That is its newest, or, as long as nothing later was saved, the one that its last start loaded from elsewhere: of a
    run of which this one is a branch, or of an earlier `checkpoint.path`. Raise CheckpointError if there is none.
    """
    checkpoints = checkpoints_of(run_dir, read_run(run_dir / CONFIG).checkpoint.path)
    steps, loaded = finished_steps(checkpoints), _loaded_from_elsewhere(run_dir, checkpoints)
    if loaded is not None and (not steps or loaded[1] > steps[-1]):
        return loaded[0]
    return newest_checkpoint(checkpoints)


def has_checkpoint(run_dir: Path, run: Run) -> bool:
    """Return whether there is a checkpoint from which the run in a folder would continue.

    The place is that of the run's configuration, or, if that cannot be read, that of `run`.
    """
    path = run.checkpoint.path
    with suppress(UserError):
        path = read_run(run_dir / CONFIG).checkpoint.path
    checkpoints = checkpoints_of(run_dir, path)
    return bool(finished_steps(checkpoints) or _loaded_from_elsewhere(run_dir, checkpoints))


def _loaded_from_elsewhere(run_dir: Path, checkpoints: Location) -> tuple[Location, int] | None:
    """Return the checkpoint from which the last start continued, and its step, if it is not one of `checkpoints`."""
    try:
        job = Job.from_json(read_regular(run_dir / JOB))
    except (OSError, ValueError):
        return None  # a start writes a new one
    if job.task != "train" or job.load is None or job.run_dir != str(run_dir.absolute()):
        return None  # the record of a copied folder describes the original run
    location = location_of(job.load)
    elsewhere = address_of(location.parent) != address_of(checkpoints)
    return (location, job.first_step) if elsewhere and (location / MANIFEST).is_file() else None


def _run_of(checkpoint: Location) -> Path | None:
    """Return the run directory of a checkpoint, or a copy of its record; None if there is neither."""
    location = checkpoint.resolve() if isinstance(checkpoint, Path) else checkpoint
    if isinstance(location, Path) and location.parent.name == CHECKPOINTS and (location.parents[1] / CONFIG).is_file():
        return location.parents[1]
    writer = writer_of(location.parent)
    if writer and (Path(writer.run_dir) / CONFIG).is_file():
        return Path(writer.run_dir)
    with suppress(UserError):
        return copied_here(location.parent)
    return None


def _missing(checkpoint: Location) -> str:
    return f"{CONFIG} is missing {'two folders above it' if isinstance(checkpoint, Path) else 'on this machine'}"


def _require_same(config: Path, run: Run, manifest: Manifest, is_of_run: bool) -> None:
    """Raise CheckpointError if the run's file is not the configuration of the model's training.

    If the checkpoint is not one of the run's own, the run was resumed from it and has not saved another.
    """
    try:
        trained = Run.model_validate(manifest.config)
    except ValidationError:
        return  # of another version of persia, whose settings cannot be compared one by one
    changes = differences(trained.model_dump(mode="json"), run.model_dump(mode="json"))
    may_have_changed = not is_of_run or any((config.parent / name).exists() for name in (EARLIER, COPIED))
    for key, (before, now) in changes:
        if is_changeable(key) and may_have_changed:
            continue  # the run was resumed with another value
        raise CheckpointError(
            f"{config} has changed since the model was trained: {key} is {now} and was {before}; restore it, and "
            "change settings on the command line"
        )
