"""The lookup of a saved model: a run directory, or one of its checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from persia_cli.config.record import read_run
from persia_cli.config.schema import Run
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.history import CONFIG, EARLIER
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.plan.resumed import is_changeable
from persia_cli.plan.saved_model import differences
from persia_cli.storage.places import Place
from persia_cli.store.manifest import CHECKPOINTS, MANIFEST, Manifest, read_manifest, unfinished_folders
from persia_cli.store.retention import choose_checkpoint, remove_unfinished


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint whose manifest has been checked, and its run."""

    run_dir: Path
    checkpoint: Place
    run: Run

    @property
    def config(self) -> Path:
        """The file of the run's configuration."""
        return self.run_dir / CONFIG


def find_model(folder: Place, step: int | None = None) -> SavedModel:
    """Return the model in `folder`, a run directory or a checkpoint in one; `step` selects a checkpoint of a run.

    Unfinished checkpoints of a killed run are removed. Raises UserError for a folder that is neither, CheckpointError
    for a checkpoint that does not exist, is damaged, or was trained with other settings than those in the run's file.
    """
    checkpoint, run_dir = locate_model(folder, step)
    if run_dir is None:
        raise UserError(f"{folder} is a checkpoint without its run: {CONFIG} is missing two folders above it")
    if unfinished_folders(run_dir / CHECKPOINTS) and not is_being_written(run_dir / EVENTS):
        remove_unfinished(run_dir / CHECKPOINTS)
    run = read_run(run_dir / CONFIG)
    _require_same(run_dir / CONFIG, run, read_manifest(checkpoint))
    return SavedModel(run_dir, checkpoint, run)


def locate_model(folder: Place, step: int | None = None) -> tuple[Place, Path | None]:
    """Return the selected checkpoint, and its run directory if it is in one.

    Raises UserError for a folder that is neither, CheckpointError for a run without such a checkpoint.
    """
    if (folder / MANIFEST).is_file():
        if step is not None:
            raise UserError(f"{folder} is a checkpoint already; leave out --step, or give the run directory")
        run_dir = _run_of(folder)
        return folder, run_dir if run_dir and (run_dir / CONFIG).is_file() else None
    if not isinstance(folder, Path) or not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder} is neither a run directory nor a checkpoint: it has no {CONFIG} and no {MANIFEST}; "
            "give the folder that persia train named at its start"
        )
    return choose_checkpoint(folder / CHECKPOINTS, step), folder


def _run_of(checkpoint: Place) -> Path | None:
    """Return the folder that would be the run directory of a checkpoint; None if its place says that it is in none."""
    folder = checkpoint.resolve() if isinstance(checkpoint, Path) else None
    return folder.parents[1] if folder and folder.parent.name == CHECKPOINTS else None


def _require_same(config: Path, run: Run, manifest: Manifest) -> None:
    """Raise CheckpointError if the run's file is not the configuration that the model was trained with."""
    try:
        trained = Run.model_validate(manifest.config)
    except ValidationError:
        return  # of another version of persia, whose settings cannot be compared one by one
    found = differences(trained.model_dump(mode="json"), run.model_dump(mode="json"))
    for key, (before, now) in found:
        if (config.parent / EARLIER).is_dir() and is_changeable(key):
            continue  # the run was resumed with another value
        raise CheckpointError(
            f"{config} has changed since the model was trained: {key} is {now} and was {before}; restore it, and "
            "change settings on the command line"
        )
