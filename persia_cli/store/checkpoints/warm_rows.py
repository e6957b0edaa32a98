"""The rows of a saved model, or vectors, as initial rows of a new run: other tables, salts, optimizers and steps."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import DataError
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.row_files import Progress, in_range, insert_rows, require_space
from persia_cli.store.checkpoints.saved import SavedRows
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.layout import GroupSpec
from persia_cli.store.row_rules import ACCUMULATORS
from persia_cli.store.row_store import Floats
from persia_cli.store.shard import Shard

NOWHERE = -1


class WarmRows:
    """The initial rows of a new shard, from saved tables and vectors: those whose keys it owns."""

    def __init__(
        self, shard: Shard, tables: Mapping[str, Sequence[str]], states: bool, progress: Progress | None = None
    ) -> None:
        """Take the rows of each saved table for the tables of the shard that it is mapped to.

        With `states`, rows have their optimizer state if their table's optimizer has the same states.
        """
        self._shard = shard
        self._states = states
        self._progress = progress or Progress()
        self._numbers = {table.name: table.number for table in shard.layout.tables()}
        self._groups = {table.number: group for group in shard.layout.groups for table in group.tables}
        layers = max(map(len, tables.values()), default=0)
        # One table may go to several: each layer has at layers one of them for each saved table.
        self._layers = [
            {old: self._numbers[new[layer]] for old, new in tables.items() if len(new) > layer}
            for layer in range(layers)
        ]

    def load(self, files: Sequence[RowFile]) -> None:
        """Add rows of the files, and treat them as used before the first step.

        Files without needed rows are not read; the content of the others is compared with their checksums. Raise
        CheckpointError for damaged files and repeated rows, and for more rows than fit.
        """
        for file in files:
            if self._may_have_rows_of(file.rows):
                with file.checked_batches(self._progress.add_bytes) as batches:
                    for batch in batches:
                        self._add_batch(batch, file.path)
        for store in self._shard.stores:
            store.forget_use()

    def add(self, table: str, ids: NDArray[np.uint64], vectors: Floats, where: str, first: int) -> None:
        """Add vectors float32 [n, dim] of a table's ids; `where` names the file, `first` the number of the first row.

        Raise DataError for an id that has a row already, CheckpointError if there is no space.
        """
        number = self._numbers[table]
        numbers = np.full(ids.size, number, np.uint16)
        keys, group = self._shard.keys_of(ids, numbers), self._groups[number]
        owned = np.flatnonzero(self._shard.stores[group.number].owns(keys))
        rows = self._with_states(group, {"embedding": vectors[owned]})
        if self._shard.insert(group.number, keys[owned], numbers[owned], np.zeros(owned.size, np.int64), rows):
            raise DataError(f"{where}: {_repeated(ids[owned], first + owned)}; leave all but one of them out")
        require_space(self._shard, self._shard.stores[group.number], where)
        self._progress.bytes_read += vectors.nbytes

    @property
    def rows(self) -> int:
        """Number of rows so far, including those without space."""
        left_out = sum(counters.left_out for counters in self._shard.counters().values())
        return left_out + sum(store.row_count for store in self._shard.stores)

    def _may_have_rows_of(self, rows: SavedRows) -> bool:
        """Return True if rows of a file are needed and may be this shard's."""
        # Keys depend on the table's name: under another name, rows may move to any partition.
        names = {table.number: table.name for table in self._shard.layout.tables()}
        return any(
            names[number] != old or in_range(self._shard.stores[self._groups[number].number], rows)
            for layer in self._layers
            for old, number in layer.items()
            if old in rows.tables
        )

    def _add_batch(self, batch: pa.RecordBatch, path: Location) -> None:
        column = batch.column("table")
        names, positions = column.dictionary.to_pylist(), column.indices.to_numpy()
        ids, last_used = batch.column("id").to_numpy(), batch.column("last_used").to_numpy()
        for layer in self._layers:
            numbers = np.array([layer.get(name, NOWHERE) for name in names], np.int32)[positions]
            for group in self._shard.layout.feature_groups:
                of_group = np.flatnonzero(np.isin(numbers, [table.number for table in group.tables]))
                tables, store = numbers[of_group].astype(np.uint16), self._shard.stores[group.number]
                keys = self._shard.keys_of(ids[of_group], tables)
                owned = store.owns(keys)
                rows = of_group[owned]
                if rows.size:
                    vectors = self._with_states(group, self._values(batch, group, rows))
                    # `forget_use` is for rows in memory; until then their last uses are compared.
                    used = last_used[rows] if store.cold is None else np.zeros(rows.size, np.int64)
                    insert_rows(self._shard, store, keys[owned], tables[owned], used, vectors, None, path)

    def _with_states(self, group: GroupSpec, vectors: dict[str, Floats]) -> dict[str, Floats]:
        """Return the vectors of added rows, with new states if they have none."""
        self._progress.rows_loaded += len(vectors["embedding"])
        return new_states(group, vectors["embedding"]) | vectors

    def _values(self, batch: pa.RecordBatch, group: GroupSpec, rows: NDArray[np.int64]) -> dict[str, Floats]:
        """Return the embedding and, if they are needed and all there, the states of some rows of a batch."""
        saved = {field.name: field.type.list_size for field in batch.schema if pa.types.is_fixed_size_list(field.type)}
        sizes = group.vectors if self._states and saved == group.vectors else {"embedding": group.dim}
        return {name: batch.column(name).flatten().to_numpy().reshape(-1, size)[rows] for name, size in sizes.items()}


def new_states(group: GroupSpec, embedding: Floats) -> dict[str, Floats]:
    """Return the initial states float32 [n, columns] of rows with this embedding."""
    # FTRL computes weights from its states alone, w = -sign(z) (|z| - a l1) / (beta + sqrt(n) + a l2). So z is solved
    # for the embedding; with z = 0, the first gradient would nearly erase it.
    optimizer = group.optimizer
    start = np.float32(optimizer.initial_accumulator_value)
    states = {
        name: np.full((len(embedding), columns), start if name in ACCUMULATORS else 0.0, np.float32)
        for name, columns in optimizer.states(group.dim).items()
    }
    if optimizer.kind == "ftrl":
        strength = optimizer.beta + np.sqrt(start) + optimizer.lr * optimizer.l2
        z = -(embedding * strength + np.sign(embedding) * optimizer.lr * optimizer.l1)
        states["ftrl_z"] = z.astype(np.float32)
    return states


def _repeated(ids: NDArray[np.uint64], rows: NDArray[np.int64]) -> str:
    """Return a description of the id that occurs twice, as far as this batch shows it."""
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        value = values[np.argmax(counts > 1)]
        one, two = rows[np.flatnonzero(ids == value)[:2]]
        return f"rows {one} and {two} have the same id {value}"
    return f"rows {rows[0]} to {rows[-1]} have ids that also occur in earlier rows"
