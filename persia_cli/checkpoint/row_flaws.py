"""The flaws of a file of rows: properties that a sound file of a checkpoint never has."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from persia_cli.checkpoint.rows import RowBlock, decoded, row_blocks
from persia_cli.errors import CheckpointError, one_line
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest
from persia_cli.store.checkpoints.saved import SavedRows
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.layout import EmbeddingLayout, GroupSpec


@dataclass
class _Found:
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
    found: dict[tuple[str, str], _Found] = field(default_factory=dict)
    """Found flaws by table and kind."""
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
        for (table, what), found in self.found.items():
            more = f"{found.rows:,} rows {what}, the first with id" if found.rows > 1 else f"a row {what}, with id"
            yield f"{self.path}: table {table} has {more} {found.first}"
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
        for place, count in enumerate(np.bincount(block.tables, minlength=len(block.names)).tolist()):
            if count:
                self.rows[block.names[place]] = self.rows.get(block.names[place], 0) + count
        self._check_places(block)
        self._check_values(block)

    def _check_places(self, block: RowBlock) -> None:
        """Check partitions, and of files in the order of keys also repeats: no row is twice in a file, nor in two."""
        if not block.keys.size:
            return
        partition = ((block.keys >> np.uint64(32)) * np.uint64(self.saved.partitions)) >> np.uint64(32)
        elsewhere: NDArray[np.bool_] = (partition < self.saved.first) | (partition >= self.saved.stop)
        self._note(block, elsewhere, f"of other partitions than {self.saved.first} to {self.saved.stop - 1}")
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
        self._note(block, again, "twice")
        self._note(block, falls, "out of the order of keys")

    def _check_values(self, block: RowBlock) -> None:
        for name, values in block.vectors.items():
            finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(values), axis=1)
            what = "embedding" if name == "embedding" else f"state {name}"
            self._note(block, ~finite, f"with NaN or infinite values in the {what}")

    def _note(self, block: RowBlock, rows: NDArray[np.bool_], what: str) -> None:
        if not rows.any():
            return
        where = np.flatnonzero(rows)
        for place in np.unique(block.tables[where]).tolist():
            of = where[block.tables[where] == place]
            found = self.found.setdefault((block.names[place], what), _Found(0, int(block.ids[of[0]])))
            found.rows += of.size
