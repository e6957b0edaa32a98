"""The changed rows of a cut as Parquet, and the rows of a base in the files that servers map.

`rows/N.parquet` has the rows of feature group N that have changed, and after them the ids that have none any more, each
in the order of keys: `table`, `id`, `deleted`, and `embedding`, null where deleted. `serving.overlay` reads it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.checkpoint.content import SortedRows, keys_of
from persia_cli.errors import CheckpointError
from persia_cli.kernels.serving.frozen_index import WORDS
from persia_cli.serving.description import FrozenGroup
from persia_cli.serving.overlay import TableChanges, keys_of_table
from persia_cli.store.checkpoints.cuts import Cut
from persia_cli.store.checkpoints.manifest import DELETED
from persia_cli.store.checkpoints.record_batches import floats_of, record_batches, table_column


class ChangedRows(NamedTuple):
    """Some rows of one group in the order of keys, or some ids that have none any more."""

    names: list[str]
    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    """Position of each row's table in `names`."""
    ids: NDArray[np.uint64]
    embedding: NDArray[np.float32]
    """[n, dim]: zeros where deleted."""
    are_deleted: bool


def changed_rows(cut: Cut, group: int) -> Iterator[ChangedRows]:
    """Yield what a cut has of a group, the deleted ids last; raises CheckpointError for damaged files."""
    rows, names = SortedRows(cut.folder, cut.manifest, group), list(cut.manifest.tables_of(group))
    for block in rows:
        yield ChangedRows(names, block.keys, block.tables, block.ids, block.vectors["embedding"], False)
    dim = next(table.dim for table in cut.manifest.tables if table.group == group)
    for path in cut.files(DELETED, group):
        with record_batches(path) as batches:
            for batch in batches:
                column, ids = batch.column("table"), batch.column("id").to_numpy()
                numbers = np.array([names.index(name) for name in column.dictionary.to_pylist()], np.uint16)
                tables = numbers[column.indices.to_numpy()]
                keys = keys_of(ids, tables, names)
                order, none = np.argsort(keys), np.zeros((ids.size, dim), np.float32)
                yield ChangedRows(names, keys[order], tables[order], ids[order], none, True)


class RowsWriter:
    """The file of one group of a delta; counts rows and deleted ids of each table."""

    def __init__(self, path: Path, names: list[str], dim: int) -> None:
        self.counts = {False: np.zeros(len(names), np.int64), True: np.zeros(len(names), np.int64)}
        """Rows with a value (False), and deleted ones (True), by table."""
        self._numbers, self._dim = {name: number for number, name in enumerate(names)}, dim
        self._schema = pa.schema([
            ("table", pa.dictionary(pa.int32(), pa.string())), ("id", pa.uint64()), ("deleted", pa.bool_()),
            ("embedding", floats_of(dim)),
        ])  # fmt: skip
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=["table"], compression="zstd")

    def add(self, rows: ChangedRows) -> None:
        """Write some rows; raises OSError."""
        size, deleted = len(rows.ids), rows.are_deleted
        self.counts[deleted] += np.bincount(rows.tables, minlength=len(rows.names))
        values = pa.array(np.ascontiguousarray(rows.embedding).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(values, self._dim)
        columns = [
            table_column(self._numbers, rows.tables),
            pa.array(rows.ids),
            pa.repeat(pa.scalar(deleted), size),
            pa.nulls(size, vectors.type) if deleted else vectors,
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Complete the file; raises OSError."""
        self._writer.close()


def base_rows(folder: Path, group: FrozenGroup) -> list[TableChanges]:
    """Return the rows of a base by table; raises CheckpointError unless the rows are float32."""
    if group.form != "float32":
        raise CheckpointError(f"{folder} has rows in {group.form}, and a published base has float32")
    words = np.fromfile(folder / group.index, np.uint64).reshape(-1, WORDS)
    values = np.fromfile(folder / group.values, np.float32).reshape(-1, group.dim)
    found = []
    for table in group.tables:
        keys = keys_of_table(words, table)
        rows = values[table.first_row : table.first_row + table.rows]
        found.append(TableChanges(keys, np.zeros(keys.size, np.bool_), rows))
    return found
