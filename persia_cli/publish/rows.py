"""The rows of a version: those of a cut as Parquet, and back, and those of a base in the files that servers map.

`rows/N.parquet` has the rows of feature group N that have changed, and the ids that have none any more, in the order of
keys: `table`, `id`, `deleted`, and `embedding`, null where deleted.
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
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.serving.frozen_index import KEYS, WORDS
from persia_cli.serving.description import FrozenGroup
from persia_cli.store.checkpoints.cuts import Cut
from persia_cli.store.checkpoints.manifest import DELETED
from persia_cli.store.checkpoints.record_batches import floats_of, record_batches, table_column, understanding_rows
from persia_cli.store.layout import table_salt

Ids = NDArray[np.uint64]
Positions = NDArray[np.uint16]


class ChangedRows(NamedTuple):
    """Rows of one group in the order of keys, and ids that have none any more."""

    names: list[str]
    keys: Ids
    tables: Positions
    """Position of each row's table in `names`."""
    ids: Ids
    deleted: NDArray[np.bool_]
    embedding: NDArray[np.float32]
    """[n, dim]: zeros where deleted."""


def path_of(group: int) -> str:
    """Return the path of a group's file in the folder of a delta."""
    return f"rows/{group}.parquet"


def changed_rows(cut: Cut, group: int) -> Iterator[ChangedRows]:
    """Yield what a cut has of a group; raises CheckpointError for damaged files."""
    rows = SortedRows(cut.folder, cut.manifest, group)
    keys, tables, ids = _deleted(cut, group, rows.names)
    dim, at = 1, 0
    for block in rows:
        dim = block.vectors["embedding"].shape[1]
        stop = int(np.searchsorted(keys, block.keys[-1], "right"))
        embedding = np.concatenate([block.vectors["embedding"], np.zeros((stop - at, dim), np.float32)])
        every = np.concatenate([block.keys, keys[at:stop]])
        numbers = np.concatenate([block.tables, tables[at:stop]])
        order = np.lexsort((numbers, every))
        deleted = np.arange(every.size) >= block.keys.size
        all_ids = np.concatenate([block.ids, ids[at:stop]])
        yield ChangedRows(
            rows.names, every[order], numbers[order], all_ids[order], deleted[order], embedding[order]
        )  # fmt: skip
        at = stop
    if at < keys.size:
        gone, none = np.ones(keys.size - at, np.bool_), np.zeros((keys.size - at, _dim(cut, group)), np.float32)
        yield ChangedRows(rows.names, keys[at:], tables[at:], ids[at:], gone, none)


def _dim(cut: Cut, group: int) -> int:
    return next(table.dim for table in cut.manifest.tables if table.group == group)


def _deleted(cut: Cut, group: int, names: list[str]) -> tuple[Ids, Positions, Ids]:
    """Return key, position of the table, and id of each row that has left, in the order of keys."""
    ids, tables = [np.empty(0, np.uint64)], [np.empty(0, np.uint16)]
    for path in cut.files(DELETED, group):
        with record_batches(path) as batches:
            for batch in batches:
                ids.append(batch.column("id").to_numpy())
                tables.append(_positions(batch.column("table"), names))
    every, numbers = np.concatenate(ids), np.concatenate(tables)
    keys = keys_of(every, numbers, names)
    order = np.lexsort((numbers, keys))
    return keys[order], numbers[order], every[order]


def _positions(column: pa.DictionaryArray, names: list[str]) -> Positions:
    places = [names.index(name) for name in column.dictionary.to_pylist()]
    positions: Positions = np.array(places, np.uint16)[column.indices.to_numpy()]
    return positions


class RowsWriter:
    """The file of one group of a delta; counts rows and deleted ids of each table."""

    def __init__(self, path: Path, names: list[str], dim: int) -> None:
        self.rows, self.deleted = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._schema = pa.schema([
            ("table", pa.dictionary(pa.int32(), pa.string())), ("id", pa.uint64()), ("deleted", pa.bool_()),
            ("embedding", floats_of(dim)),
        ])  # fmt: skip
        self._dim = dim
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=["table"], compression="zstd")

    def add(self, rows: ChangedRows) -> None:
        """Write some rows; raises OSError."""
        count = len(self.rows)
        self.rows += np.bincount(rows.tables[~rows.deleted], minlength=count)
        self.deleted += np.bincount(rows.tables[rows.deleted], minlength=count)
        values = pa.array(np.ascontiguousarray(rows.embedding).reshape(-1))
        columns = [
            table_column(self._numbers, rows.tables),
            pa.array(rows.ids),
            pa.array(rows.deleted),
            pa.FixedSizeListArray.from_arrays(values, self._dim, mask=pa.array(rows.deleted)),
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Complete the file; raises OSError."""
        self._writer.close()


def rows_in(path: Path, names: list[str]) -> Iterator[ChangedRows]:
    """Yield the rows of a file of a delta, whose tables are `names`; raises CheckpointError for a damaged one."""
    with understanding_rows(path):
        for batch in pq.ParquetFile(path).iter_batches():
            column = batch.column("table")
            encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
            tables, ids = _positions(encoded, names), batch.column("id").to_numpy()
            deleted = batch.column("deleted").to_numpy(zero_copy_only=False)
            vectors = batch.column("embedding")
            dim = vectors.type.list_size
            embedding = np.zeros((ids.size, dim), np.float32)
            embedding[~deleted] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            yield ChangedRows(names, keys_of(ids, tables, names), tables, ids, deleted, embedding)


def base_rows(folder: Path, group: FrozenGroup) -> Iterator[ChangedRows]:
    """Yield the rows of a base, table by table; raises CheckpointError unless the rows are float32."""
    if group.form != "float32":
        raise CheckpointError(f"{folder} has rows in {group.form}, and a published base has float32")
    names = [table.name for table in group.tables]
    words = np.fromfile(folder / group.index, np.uint64).reshape(-1, WORDS)
    values = np.fromfile(folder / group.values, np.float32).reshape(-1, group.dim)
    for position, table in enumerate(group.tables):
        own = words[table.first_bucket : table.first_bucket + table.buckets]
        keys = own[:, 1:][np.arange(KEYS) < (own[:, :1] & np.uint64(7))]
        tables = np.full(keys.size, position, np.uint16)
        rows = values[table.first_row : table.first_row + table.rows]
        yield ChangedRows(names, keys, tables, ids_of(keys, tables, names), np.zeros(keys.size, np.bool_), rows)


def ids_of(keys: Ids, tables: Positions, names: list[str]) -> Ids:
    """Return the id of each key."""
    salts, ids = np.array([table_salt(name) for name in names], np.uint64), np.empty_like(keys)
    hashing.recover_ids(keys, tables, salts, ids)
    return ids
