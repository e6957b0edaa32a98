"""The verification of checkpoints: checksums of files, counts of rows, and values that are not finite."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from persia_cli.checkpoint.content import (
    DENSE,
    INITIAL,
    OPTIMIZER,
    WEIGHTS,
    RowBlock,
    decoded,
    read_tensors,
    row_blocks,
)
from persia_cli.checkpoint.listing import list_checkpoints, run_checkpoints
from persia_cli.errors import CheckpointError, UserError, one_line
from persia_cli.observe.saved_run import locate_model
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
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.store.checkpoints.saved_rows import RowFile, cold_row_file


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
    listed = list_checkpoints(folder)
    if not listed.checkpoints:
        raise CheckpointError(f"{folder} has no complete checkpoint")
    bare = [f"{left.path} has no {MANIFEST}: it is damaged, or was copied in part" for left in listed.without_manifest]
    return (
        [checkpoint_folder(run_checkpoints(folder), checkpoint.step) for checkpoint in listed.checkpoints],
        folder,
        [*([listed.best_flaw] if listed.best_flaw else []), *bare],
    )


def verify_checkpoint(folder: Location, progress: VerifyingProgress) -> Verification:
    """Return all flaws of a checkpoint; needs memory for a few record batches and its dense weights."""
    result = Verification(str(folder))
    try:
        manifest = decode_manifest(folder)
    except CheckpointError as error:
        result.flaws.append(one_line(error))
        return result
    result.step = manifest.step
    result.flaws += file_flaws(folder, manifest)
    progress.of += 2 * sum(file.nbytes for file in manifest.files)
    for file in manifest.files:
        done = progress.work
        _verify_file(folder, file, manifest, progress, result)
        progress.add(max(0, done + 2 * file.nbytes - progress.work))
    result.flaws += dense_flaws(folder, manifest)
    if result.flaws and not (folder / MANIFEST).is_file():
        result.flaws, result.notes = [], [f"{folder} was removed while it was being verified"]
    return result


def _verify_file(
    folder: Location,
    file: SavedFile,
    manifest: Manifest,
    progress: VerifyingProgress,
    result: Verification,
) -> None:
    path = folder / file.folder / file.name
    if (size := size_of(path)) is None:
        return
    try:
        verify(path, file, progress.add)
    except CheckpointError as error:
        result.flaws.append(one_line(error))
    result.nbytes += size
    if file.rows is None:
        return
    nbytes, of, rows = file.nbytes, max(file.rows.total, 1), progress.rows
    cold = cold_row_file(folder, manifest, file) if kind_of(file) == COLD else None
    result.flaws += RowFlaws(path, file.rows, manifest, cold).sentences(
        lambda more: progress.add(nbytes * more // of, more)
    )
    result.rows += progress.rows - rows


def dense_flaws(folder: Location, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each flaw of the dense files."""
    listed = {file.name: folder / file.folder / file.name for file in manifest.files if kind_of(file) == DENSE}
    is_async = manifest.config["mode"]["kind"] == "async"
    for name in [WEIGHTS, OPTIMIZER, *([INITIAL] if is_async else [])]:
        if (path := listed.get(name)) is None:
            yield f"{folder / DENSE / name} is not in the checkpoint, which needs it"
            continue
        try:
            tensors = read_tensors(path).tensors
        except CheckpointError as error:
            yield str(error)
            continue
        for tensor, values in tensors.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                wrong = values.size - np.count_nonzero(np.isfinite(values))
                yield f"{path}: {tensor} has {wrong:,} values that are NaN or infinite, of {values.size:,}"


@dataclass
class _FlawedRows:
    """Number of rows with a flaw, and the id of the first."""

    rows: int
    first: int


@dataclass
class RowFlaws:
    """The check of one file, block by block, in memory of fixed size."""

    path: Location
    saved: SavedRows
    manifest: Manifest
    cold: RowFile | None = None
    """The rows, in any order, if they were not in memory."""
    flawed: dict[tuple[str, str], _FlawedRows] = field(default_factory=dict)
    """Rows with flaws by table and kind."""
    rows: dict[str, int] = field(default_factory=dict)

    def sentences(self, on_rows: Callable[[int], None]) -> Iterator[str]:
        """Yield a sentence for each kind of flaw and table; calls `on_rows` with the number of rows of each portion."""
        names = list(self.manifest.tables_of(self.saved.group))
        try:
            for block in self._blocks(names):
                self._check(block)
                on_rows(block.keys.size)
        except (CheckpointError, ValueError) as error:
            yield one_line(error)
            return
        for (table, what), flawed in self.flawed.items():
            more = f"{flawed.rows:,} rows {what}, the first with id" if flawed.rows > 1 else f"a row {what}, with id"
            yield f"{self.path}: table {table} has {more} {flawed.first}"
        for name in dict.fromkeys([*self.saved.tables, *self.rows]):
            listed, there = self.saved.tables.get(name, 0), self.rows.get(name, 0)
            if listed != there:
                yield f"{self.path} has {there:,} rows of table {name}, and {listed:,} were saved"

    def _blocks(self, names: list[str]) -> Iterator[RowBlock]:
        if self.cold is None:
            return row_blocks(self.path, names)
        return (decoded(batch, names) for batch in self.cold.batches())

    def _check(self, block: RowBlock) -> None:
        for number, count in enumerate(np.bincount(block.tables, minlength=len(block.names)).tolist()):
            if count:
                self.rows[block.names[number]] = self.rows.get(block.names[number], 0) + count
        for name, values in block.vectors.items():
            finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(values), axis=1)
            what = "embedding" if name == "embedding" else f"state {name}"
            self._count(block, ~finite, f"with NaN or infinite values in the {what}")

    def _count(self, block: RowBlock, rows: NDArray[np.bool_], what: str) -> None:
        if not rows.any():
            return
        where = np.flatnonzero(rows)
        for number in np.unique(block.tables[where]).tolist():
            of = where[block.tables[where] == number]
            flawed = self.flawed.setdefault((block.names[number], what), _FlawedRows(0, int(block.ids[of[0]])))
            flawed.rows += of.size
