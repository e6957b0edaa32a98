"""The changed rows of a cut as Parquet, and the rows of a base in the files that servers map.

`rows/N.parquet` has the rows of feature group N that have changed, and after them the ids that have none any more, each
in the order of keys: `table`, `id`, `deleted`, and `embedding`, null where deleted. `serving.overlay` reads it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persia_cli.checkpoint.content import SortedRows, keys_of
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


@contextmanager
def rows_writer(path: Path, names: list[str], dim: int) -> Iterator[Callable[[ChangedRows], None]]:
    """Yield a function that adds rows to the file of one group of a delta; raises OSError."""
    numbers = {name: number for number, name in enumerate(names)}
    schema = pa.schema([
        ("table", pa.dictionary(pa.int32(), pa.string())), ("id", pa.uint64()), ("deleted", pa.bool_()),
        ("embedding", floats_of(dim)),
    ])  # fmt: skip
    with pq.ParquetWriter(path, schema, use_dictionary=["table"], compression="zstd") as writer:

        def add(rows: ChangedRows) -> None:
            size, values = len(rows.ids), pa.array(np.ascontiguousarray(rows.embedding).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(values, dim)
            columns = [
                table_column(numbers, rows.tables),
                pa.array(rows.ids),
                pa.repeat(pa.scalar(rows.are_deleted), size),
                pa.nulls(size, vectors.type) if rows.are_deleted else vectors,
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

        yield add


def base_rows(folder: Path, group: FrozenGroup) -> list[TableChanges]:
    """Return the rows of a base by table, which are in float32."""
    words = np.fromfile(folder / group.index, np.uint64).reshape(-1, WORDS)
    values = np.fromfile(folder / group.values, np.float32).reshape(-1, group.dim)
    found = []
    for table in group.tables:
        keys = keys_of_table(words, table)
        rows = values[table.first_row : table.first_row + table.rows]
        found.append(TableChanges(keys, np.zeros(keys.size, np.bool_), rows))
    return found
