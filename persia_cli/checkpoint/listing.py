"""The list of a run's checkpoints with their contents, the best one, and unfinished folders."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.record import read_run
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, is_being_written
from persia_cli.observe.saved_run import newest_of_run
from persia_cli.storage.locations import PARTIAL, Location, modified_s, nbytes_below
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    checkpoint_folder,
    checkpoints_of,
    finished_steps,
    folders_without_manifest,
    read_manifest,
    unfinished_folders,
)
from persia_cli.store.checkpoints.retention import best_checkpoint

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
    note: str = ""
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
    note, best, newest = "", None, None
    with suppress(CheckpointError):
        newest = newest_of_run(run_dir)
    try:
        best = best_checkpoint(checkpoints)
    except CheckpointError as error:
        note = str(error)
    if best is not None and best not in [checkpoint_folder(checkpoints, step) for step in steps]:
        note = f"best.json names {best.name}, which is not there"
    return CheckpointList(
        run_dir=str(run_dir),
        running=running,
        checkpoints=tuple(_listed(checkpoint_folder(checkpoints, step), step, best, newest) for step in steps),
        leftovers=(
            *(_leftover(folder, running) for folder in unfinished_folders(checkpoints)),
            *(Leftover(str(folder), NO_MANIFEST, nbytes_below(folder)) for folder in bare),
        ),
        note=note,
        elsewhere=str(newest) if newest is not None and newest.parent != checkpoints else None,
    )


def _listed(folder: Location, step: int, best: Location | None, newest: Location | None) -> ListedCheckpoint:
    is_best, resumes, saved_s = best == folder, newest == folder, None
    try:
        saved_s = modified_s(folder / MANIFEST)
        manifest = read_manifest(folder)
    except (CheckpointError, FileNotFoundError) as error:
        return ListedCheckpoint(
            step,
            str(folder),
            saved_s=saved_s,
            damage=str(error),
            nbytes=nbytes_below(folder),
            best=is_best,
            resumes=resumes,
        )
    return ListedCheckpoint(
        step=step,
        path=str(folder),
        samples=manifest.samples,
        saved_s=saved_s,
        nbytes=nbytes_below(folder),
        rows=manifest.row_count(with_dense=False),
        best=is_best,
        resumes=resumes,
    )


def _leftover(folder: Location, running: bool) -> Leftover:
    unfinished = "being written" if running else "unfinished"
    return Leftover(str(folder), unfinished if folder.suffix == PARTIAL else "partly removed", nbytes_below(folder))
