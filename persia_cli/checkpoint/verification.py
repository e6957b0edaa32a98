"""The verification of checkpoints: every file is read completely, and every flaw is a sentence."""

from collections.abc import Callable, Iterator, Mapping
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
    Tensor,
    decoded,
    layout_of,
    read_tensors,
    row_blocks,
)
from persia_cli.checkpoint.listing import list_checkpoints, run_checkpoints
from persia_cli.errors import CheckpointError, ConfigError, UserError, one_line
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
from persia_cli.store.layout import EmbeddingLayout, GroupSpec


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
    try:
        layout = layout_of(manifest)
    except ConfigError as error:
        layout = None
        result.notes.append(
            f"its configuration is not one of this version, so states of optimizers were not compared with it: {error}"
        )
    for file in manifest.files:
        done = progress.work
        _verify_file(folder, file, manifest, layout, progress, result)
        progress.add(max(0, done + 2 * file.nbytes - progress.work))
    result.flaws += dense_flaws(folder, manifest)
    if result.flaws and not (folder / MANIFEST).is_file():
        result.flaws, result.notes = [], [f"{folder} was removed while it was being verified"]
    return result


def _verify_file(
    folder: Location,
    file: SavedFile,
    manifest: Manifest,
    layout: EmbeddingLayout | None,
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
    result.flaws += RowFlaws(path, file.rows, manifest, layout, cold).sentences(
        lambda more: progress.add(nbytes * more // of, more)
    )
    result.rows += progress.rows - rows


def dense_flaws(folder: Location, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each flaw of the dense files."""
    listed = {file.name: folder / file.folder / file.name for file in manifest.files if kind_of(file) == DENSE}
    is_async = manifest.config["mode"]["kind"] == "async"
    weights: dict[str, Tensor] | None = None
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
        if name == WEIGHTS:
            weights = tensors
        elif name == OPTIMIZER and weights is not None:
            yield from _state_flaws(path, weights, tensors)


def _state_flaws(path: Location, weights: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a sentence for each state without a weight, and each that only some of the weights with states have."""
    kinds_of: dict[str, set[str]] = {}
    for name in states:
        weight, _, kind = name.rpartition("/")
        kinds_of.setdefault(weight, set()).add(kind)
    every = set().union(*kinds_of.values())
    for weight, kinds in kinds_of.items():
        if weight not in weights:
            yield f"{path} has states of {weight}, and {WEIGHTS} has no such weight"
        for kind in sorted(every - kinds):
            yield f"{path} has no {weight}/{kind}, which other weights have"


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
    layout: EmbeddingLayout | None
    """Layout of the checkpoint's configuration; None if it cannot be made, then optimizer states are unknown."""
    cold: RowFile | None = None
    """The rows, in any order, if they were not in memory."""
    flawed: dict[tuple[str, str], _FlawedRows] = field(default_factory=dict)
    """Rows with flaws by table and kind."""
    columns: dict[str, int] | None = None
    rows: dict[str, int] = field(default_factory=dict)
    last: tuple[int, int] = (-1, 0)
    """Key and table of the previous row."""

    def sentences(self, on_rows: Callable[[int], None]) -> Iterator[str]:
        """Yield a sentence for each kind of flaw and table; calls `on_rows` with the number of rows of each portion."""
        names = list(self.manifest.tables_of(self.saved.group))
        try:
            for block in self._blocks(names):
                yield from self._wrong_columns(block)
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

    @property
    def group(self) -> GroupSpec | None:
        """The file's feature group by the configuration."""
        groups = {group.number: group for group in self.layout.groups} if self.layout else {}
        return groups.get(self.saved.group)

    def _wrong_columns(self, block: RowBlock) -> Iterator[str]:
        """Yield a sentence for each column of vectors that is missing, too many or of another size, once."""
        if self.columns is not None:
            return
        self.columns = {name: values.shape[1] for name, values in block.vectors.items()}
        dims = {table.dim for table in self.manifest.tables if table.group == self.saved.group}
        wanted = {"embedding": min(dims, default=0)}
        if self.group is not None:
            wanted |= self.group.optimizer.states(self.group.dim)
        of = f"table {', '.join(block.names)}"
        for name in dict.fromkeys([*wanted, *self.columns]):
            size = self.columns.get(name)
            if size is None:
                yield f"{self.path}: {of} has no column {name}, which its optimizer needs"
            elif name not in wanted and self.group is not None:
                yield f"{self.path}: {of} has a column {name}, which its optimizer does not have"
            elif name in wanted and size != wanted[name]:
                yield f"{self.path}: {of} has {size} values to a row in column {name}, and not {wanted[name]}"

    def _check(self, block: RowBlock) -> None:
        for number, count in enumerate(np.bincount(block.tables, minlength=len(block.names)).tolist()):
            if count:
                self.rows[block.names[number]] = self.rows.get(block.names[number], 0) + count
        self._check_order(block)
        self._check_values(block)

    def _check_order(self, block: RowBlock) -> None:
        """Check partitions, and of files in the order of keys also repeats: no row is twice in a file, nor in two."""
        if not block.keys.size:
            return
        partition = ((block.keys >> np.uint64(32)) * np.uint64(self.saved.partitions)) >> np.uint64(32)
        elsewhere: NDArray[np.bool_] = (partition < self.saved.first) | (partition >= self.saved.stop)
        self._count(block, elsewhere, f"of other partitions than {self.saved.first} to {self.saved.stop - 1}")
        if self.cold is not None:
            return
        # With the last key of the previous block in front, since the order has to hold across blocks too.
        keys = np.concatenate([np.array([max(self.last[0], 0)], np.uint64), block.keys])
        tables = np.concatenate([np.array([self.last[1]], np.uint16), block.tables])
        same = keys[1:] == keys[:-1]
        again: NDArray[np.bool_] = same & (tables[1:] == tables[:-1])
        falls: NDArray[np.bool_] = (keys[1:] < keys[:-1]) | (same & (tables[1:] < tables[:-1]))
        if self.last[0] < 0:
            again[0] = falls[0] = False
        self.last = int(block.keys[-1]), int(block.tables[-1])
        self._count(block, again, "twice")
        self._count(block, falls, "out of the order of keys")

    def _check_values(self, block: RowBlock) -> None:
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
