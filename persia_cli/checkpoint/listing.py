"""The checkpoints of a run: their list with contents, the best one, unfinished folders; and the removal of old ones."""

from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from persia_cli.config.record import read_run
from persia_cli.disk import writing
from persia_cli.engines.resumed import locked
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.observe.saved_run import newest_of_run
from persia_cli.storage import locations
from persia_cli.storage.locations import PARTIAL, Location, modified_s, nbytes_below
from persia_cli.store.checkpoints.claim import writer_of
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    checkpoints_of,
    finished_steps,
    folders_without_manifest,
    read_manifest,
    unfinished_folders,
)
from persia_cli.store.checkpoints.retention import best_checkpoint, newest_whole

NO_MANIFEST = "without its manifest"


@dataclass(frozen=True)
class ListedCheckpoint:
    """A complete checkpoint of a run; None stands for what a damaged manifest does not contain."""

    step: int
    path: str
    samples: int | None = None
    saved_s: float | None = None
    """Time of writing of its manifest, in seconds since 1970."""
    nbytes: int | None = None
    """Size of all its files."""
    rows: int | None = None
    """Rows of all tables that features read."""
    best: bool = False
    """True for the one that `best.json` names."""
    resumes: bool = False
    """True for the one from which `persia resume` would continue."""
    damage: str = ""
    """The first flaw that its manifest, and the names and sizes of its files, show; `verify` finds all."""


@dataclass(frozen=True)
class Leftover:
    """A folder of a checkpoint that was not finished, or not completely removed."""

    path: str
    state: str
    """`being written`, `unfinished`, `partly removed`, or `without its manifest`."""
    nbytes: int


@dataclass(frozen=True)
class CheckpointList:
    """All checkpoints of a run by step, and the remains of others."""

    run_dir: str
    running: bool
    checkpoints: tuple[ListedCheckpoint, ...]
    leftovers: tuple[Leftover, ...]
    best_flaw: str = ""
    """The flaw of `best.json`."""
    elsewhere: str | None = None
    """The checkpoint of another folder from which `persia resume` would continue, since no later one is saved."""

    @property
    def without_manifest(self) -> list[Leftover]:
        """Folders that would be complete checkpoints if they had a manifest."""
        return [left for left in self.leftovers if left.state == NO_MANIFEST]


def require_run(folder: Path) -> None:
    """Raise UserError unless the folder is a run directory."""
    if (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is a checkpoint; give the run directory, two folders above it")
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} is not a run directory: it has no {CONFIG}; give the folder that persia train named")


def is_running(run_dir: Path) -> bool:
    """Return True if a process writes the record of the run, or if that is unknown."""
    return (run_dir / EVENTS).exists() and is_being_written(run_dir / EVENTS)


def run_checkpoints(run_dir: Path) -> Location:
    """Return the folder of a run's checkpoints by its configuration."""
    return checkpoints_of(run_dir, read_run(run_dir / CONFIG).checkpoint.path)


def list_checkpoints(run_dir: Path) -> CheckpointList:
    """Return the checkpoints of a run directory; raises UserError for another folder."""
    require_run(run_dir)
    checkpoints = run_checkpoints(run_dir)
    running, steps, bare = is_running(run_dir), finished_steps(checkpoints), folders_without_manifest(checkpoints)
    best_flaw, best, newest = "", None, None
    with suppress(CheckpointError):
        newest = newest_of_run(run_dir)
    try:
        best = best_checkpoint(checkpoints)
    except CheckpointError as error:
        best_flaw = str(error)
    if best is not None and best not in [checkpoint_folder(checkpoints, step) for step in steps]:
        best_flaw = f"best.json names {best.name}, which is not there"
    return CheckpointList(
        run_dir=str(run_dir),
        running=running,
        checkpoints=tuple(_listed(checkpoint_folder(checkpoints, step), step, best, newest) for step in steps),
        leftovers=(
            *(_leftover(folder, running) for folder in unfinished_folders(checkpoints)),
            *(Leftover(str(folder), NO_MANIFEST, nbytes_below(folder)) for folder in bare),
        ),
        best_flaw=best_flaw,
        elsewhere=str(newest) if newest is not None and newest.parent != checkpoints else None,
    )


def _listed(folder: Location, step: int, best: Location | None, newest: Location | None) -> ListedCheckpoint:
    listed = ListedCheckpoint(
        step, str(folder), nbytes=nbytes_below(folder), best=best == folder, resumes=newest == folder
    )
    try:
        listed = replace(listed, saved_s=modified_s(folder / MANIFEST))
        manifest = read_manifest(folder)
    except (CheckpointError, FileNotFoundError) as error:
        return replace(listed, damage=str(error))
    return replace(listed, samples=manifest.samples, rows=manifest.row_count(with_dense=False))


def _leftover(folder: Location, running: bool) -> Leftover:
    unfinished = "being written" if running else "unfinished"
    return Leftover(str(folder), unfinished if folder.suffix == PARTIAL else "partly removed", nbytes_below(folder))


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
        return sum(folder.nbytes for folder in self.doomed)


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
        if {str(doomed.folder) for doomed in plan.doomed} != {str(doomed.folder) for doomed in expected.doomed}:
            raise UserError(f"the checkpoints of {run_dir} have changed in between; give the command again")
        for folder in [doomed.folder for doomed in plan.doomed]:
            with writing(folder) if isinstance(folder, Path) else nullcontext():
                locations.remove(folder, MANIFEST)
    return plan


def require_no_reader(run_dir: Path) -> None:
    """Raise UserError if an evaluation or prediction reads a checkpoint of the run."""
    for folder in READERS:
        for events in sorted((run_dir / folder).glob(f"*/{EVENTS}")):
            if is_being_written(events):
                raise UserError(f"the job in {events.parent} reads a checkpoint of {run_dir}; wait for its end")
