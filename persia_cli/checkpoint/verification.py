"""The verification of checkpoints: every file is read completely, and every flaw is a sentence."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from persia_cli.checkpoint.dense_flaws import dense_flaws
from persia_cli.checkpoint.listing import list_checkpoints, run_checkpoints
from persia_cli.checkpoint.row_flaws import RowFlaws
from persia_cli.config.schema import Run
from persia_cli.errors import CheckpointError, ConfigError, UserError, one_line
from persia_cli.observe.saved_run import locate_model
from persia_cli.plan.embedding import embedding_layout
from persia_cli.storage.locations import Location, size_of
from persia_cli.store.checkpoints.manifest import (
    COLD,
    MANIFEST,
    Manifest,
    checkpoint_folder,
    decode_manifest,
    file_flaws,
    kind_of,
    verify,
)
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.checkpoints.saved_rows import cold_row_file
from persia_cli.store.layout import EmbeddingLayout


@dataclass
class Verification:
    """The result of the verification of one checkpoint; it is sound if there are no flaws."""

    path: str
    step: int | None = None
    rows: int = 0
    """Number of rows that were read."""
    nbytes: int = 0
    """Number of bytes whose checksum was computed."""
    flaws: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Parts that could not be verified, and why."""


@dataclass
class VerifyingProgress:
    """The progress of a verification; its numbers only rise, and work is in bytes."""

    work: int = 0
    of: int = 0
    rows: int = 0
    on_change: Callable[["VerifyingProgress"], None] = lambda progress: None

    def add(self, work: int, rows: int = 0) -> None:
        """Add finished work."""
        self.work, self.rows = self.work + work, self.rows + rows
        self.on_change(self)


def checkpoints_in(folder: Location) -> tuple[list[Location], Path | None, list[str]]:
    """Return the checkpoints of a folder, which is a run directory or one of them; the run directory; the run's flaws.

    Raises UserError for a folder that is neither, CheckpointError for a run without a checkpoint.
    """
    if (folder / MANIFEST).is_file():
        return [folder], locate_model(folder)[1], []
    if not isinstance(folder, Path):
        raise UserError(f"{folder} has no {MANIFEST}, so it is no checkpoint")
    found = list_checkpoints(folder)
    if not found.checkpoints:
        raise CheckpointError(f"{folder} has no complete checkpoint")
    bare = [f"{left.path} has no {MANIFEST}: it is damaged, or was copied in part" for left in found.without_manifest]
    return (
        [checkpoint_folder(run_checkpoints(folder), each.step) for each in found.checkpoints],
        folder,
        [*([found.note] if found.note else []), *bare],
    )


def verify_checkpoint(folder: Location, progress: VerifyingProgress) -> Verification:
    """Return all flaws of a checkpoint; needs memory for a few record batches and its dense weights."""
    found = Verification(str(folder))
    try:
        manifest = decode_manifest(folder)
    except CheckpointError as error:
        found.flaws.append(one_line(error))
        return found
    found.step = manifest.step
    found.flaws += file_flaws(folder, manifest)
    progress.of += 2 * sum(file.nbytes for file in manifest.files)
    layout = _layout_of(manifest, found)
    for file in manifest.files:
        done = progress.work
        _verify_file(folder, file, manifest, layout, progress, found)
        progress.add(max(0, done + 2 * file.nbytes - progress.work))
    found.flaws += dense_flaws(folder, manifest)
    if found.flaws and not (folder / MANIFEST).is_file():
        found.flaws, found.notes = [], [f"{folder} was removed while it was being verified"]
    return found


def _verify_file(
    folder: Location,
    file: SavedFile,
    manifest: Manifest,
    layout: EmbeddingLayout | None,
    progress: VerifyingProgress,
    found: Verification,
) -> None:
    path = folder / file.folder / file.name
    if (size := size_of(path)) is None:
        return
    try:
        verify(path, file, progress.add)
    except CheckpointError as error:
        found.flaws.append(one_line(error))
    found.nbytes += size
    if file.rows is None:
        return
    nbytes, of, rows = file.nbytes, max(file.rows.total, 1), progress.rows
    cold = cold_row_file(folder, manifest, file) if kind_of(file) == COLD else None
    found.flaws += RowFlaws(path, file.rows, manifest, layout, cold).sentences(
        lambda more: progress.add(nbytes * more // of, more)
    )
    found.rows += progress.rows - rows


def _layout_of(manifest: Manifest, found: Verification) -> EmbeddingLayout | None:
    """Return the layout of a checkpoint's configuration; None, with a note of the reason, if this version has none."""
    try:
        return embedding_layout(Run.model_validate(manifest.config))
    except (ValidationError, ConfigError) as error:
        found.notes.append(
            "its configuration is not one of this version, so states of optimizers were not compared with it: "
            + one_line(error)
        )
        return None
