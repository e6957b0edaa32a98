"""The removal of checkpoints and leftovers that are no longer needed."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from persia_cli.checkpoint.listing import NO_MANIFEST, require_run
from persia_cli.config.record import read_run
from persia_cli.disk import writing
from persia_cli.engines.resumed import locked
from persia_cli.errors import UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.storage import locations
from persia_cli.storage.locations import Location, nbytes_below
from persia_cli.store.checkpoints.claim import writer_of
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    checkpoints_of,
    finished_steps,
    folders_without_manifest,
    unfinished_folders,
)
from persia_cli.store.checkpoints.retention import best_checkpoint, newest_whole

READERS = ("evals", "predictions")
"""Folders of a run directory with the jobs that read its checkpoints."""


@dataclass(frozen=True)
class Doomed:
    """A folder to remove, and the reason."""

    folder: Location
    why: str
    nbytes: int


@dataclass(frozen=True)
class CleanUp:
    """The folders to remove, and the steps of the retained checkpoints with the reason for each."""

    doomed: list[Doomed]
    retained: dict[int, str]

    @property
    def nbytes(self) -> int:
        """Disk space that the removal frees."""
        return sum(each.nbytes for each in self.doomed)


def plan_clean_up(run_dir: Path, keep: int | None) -> CleanUp:
    """Return the folders to remove if the newest `keep` checkpoints are retained; None stands for `checkpoint.keep`.

    The best and the newest are always retained. Raises UserError for a folder that is no run, CheckpointError if
    `best.json` is damaged, since then the best is unknown.
    """
    require_run(run_dir)
    settings = read_run(run_dir / CONFIG).checkpoint
    checkpoints = checkpoints_of(run_dir, settings.path)
    keep = settings.keep if keep is None else keep
    writer = writer_of(checkpoints)
    if writer is not None and Path(writer.run_dir) != run_dir.absolute():
        raise UserError(
            f"the checkpoints in {checkpoints} belong to the run in {writer.run_dir} on {writer.host}; clean up there"
        )
    steps, best = finished_steps(checkpoints), best_checkpoint(checkpoints)
    retained = dict.fromkeys(steps[-keep:], f"one of the newest {keep}") if keep else {}
    if keep is None:
        retained = dict.fromkeys(steps, "no limit is set")
    if (whole := newest_whole(checkpoints, steps)) is not None:
        retained[whole] = "newest that is whole"
    retained |= dict.fromkeys(steps[-1:], "newest")
    retained |= {step: "best" for step in steps if checkpoint_folder(checkpoints, step) == best}
    old = [checkpoint_folder(checkpoints, step) for step in steps if step not in retained]
    doomed = [Doomed(folder, "older than those to keep", nbytes_below(folder)) for folder in old]
    left = [Doomed(folder, "left unfinished", nbytes_below(folder)) for folder in unfinished_folders(checkpoints)]
    left += [Doomed(folder, NO_MANIFEST, nbytes_below(folder)) for folder in folders_without_manifest(checkpoints)]
    return CleanUp([*left, *doomed], dict(sorted(retained.items())))


def clean_up(run_dir: Path, keep: int | None, expected: CleanUp) -> CleanUp:
    """Remove the folders that `plan_clean_up` names, and return them.

    Raises UserError if the run is still running, if an evaluation or prediction reads it, or if the folders to remove
    are no longer `expected`; DiskError for a folder that cannot be removed. A folder that is removed half-way never
    looks like a checkpoint.
    """
    with locked(run_dir):
        require_no_reader(run_dir)
        plan = plan_clean_up(run_dir, keep)
        if {str(each.folder) for each in plan.doomed} != {str(each.folder) for each in expected.doomed}:
            raise UserError(f"the checkpoints of {run_dir} have changed in between; give the command again")
        for each in plan.doomed:
            with writing(each.folder) if isinstance(each.folder, Path) else nullcontext():
                locations.remove(each.folder, MANIFEST)
    return plan


def require_no_reader(run_dir: Path) -> None:
    """Raise UserError if an evaluation or prediction reads a checkpoint of the run."""
    for folder in READERS:
        for events in sorted((run_dir / folder).glob(f"*/{EVENTS}")):
            if is_being_written(events):
                raise UserError(f"the job in {events.parent} reads a checkpoint of {run_dir}; wait for its end")
