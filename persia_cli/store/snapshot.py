"""A shard's rows in Arrow IPC files, which pandas, polars and DuckDB open as Feather; and back.

One file per feature group and server, named after the group's partitions that the server owns; a server that owns none
writes none. Rows lie by partition, then key, then table number, so equal shards give equal files. Embeddings are
float32 however they are kept, which loses nothing. Rows are placed anew by their keys when they are loaded: any number
of servers, and any number of partitions, can load any set of files.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError
from persia_cli.kernels import hashing
from persia_cli.store.layout import GroupSpec
from persia_cli.store.manifest import SavedFile
from persia_cli.store.row_store import MAX_SCORE, Inserted, RowStore
from persia_cli.store.shard import Shard

ROWS_PER_BATCH = 65536
"""About how many rows are in memory at a time."""
PARTITIONS_KEY = b"persia.partitions"
"""What a file says the group's partitions were, over all servers, when it was saved; for people."""


class _HashingFile(io.RawIOBase):
    """A file that is hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self.nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self.nbytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.nbytes

    def close(self) -> None:
        if not self.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()

    def sha256(self) -> str:
        return self._digest.hexdigest()


def save_shard(shard: Shard, directory: Path, on_rows: Callable[[int], None] = lambda rows: None) -> list[SavedFile]:
    """Write one file per feature group into `directory`, which exists; the files are on disk when this returns.

    `on_rows` is told how many rows were written, each time some were.
    """
    return [_save_group(shard, store, directory, on_rows) for store in shard.stores if len(store.partitions)]


def load_shard(shard: Shard, directory: Path, names: Sequence[str], checksums: Mapping[str, str] | None = None) -> int:
    """Add the rows of the files' keys that are in the shard's partitions; returns how many.

    Embeddings are rounded to the nearest value of the dtype they are kept in. `checksums` gives the expected sha256 by
    file name. Raises CheckpointError for a missing, damaged or altered file, rows of another shape than the config's,
    unknown tables, repeated rows and rows beyond the capacity.
    """
    return sum(_load_file(shard, directory / name, (checksums or {}).get(name)) for name in names)


def _save_group(shard: Shard, store: RowStore, directory: Path, on_rows: Callable[[int], None]) -> SavedFile:
    group = store.group
    name = f"group-{group.number}-partitions-{store.partitions.start:04d}-{store.partitions.stop - 1:04d}.arrow"
    schema = _schema(group).with_metadata({PARTITIONS_KEY: str(group.partitions)})
    rows = 0
    with _HashingFile(directory / name) as file:
        with (
            pa.PythonFile(file, mode="w") as sink,
            pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer,
        ):
            for batch in _batches(shard, store, schema):
                writer.write_batch(batch)
                rows += batch.num_rows
                on_rows(batch.num_rows)
        nbytes, sha256 = file.nbytes, file.sha256()
    return SavedFile(directory.name, name, nbytes, sha256, group.number, rows)


def _vectors(group: GroupSpec) -> dict[str, int]:
    """Columns of vectors and the size of each: the embedding and the optimizer's states."""
    return {"embedding": group.dim, **group.optimizer.states(group.dim)}


def _schema(group: GroupSpec) -> pa.Schema:
    fields = [
        pa.field("table", pa.dictionary(pa.int32(), pa.string())),
        pa.field("id", pa.uint64()),
        pa.field("score", pa.int64()),
    ]
    return pa.schema(fields + [pa.field(name, _list_of(size)) for name, size in _vectors(group).items()])


def _list_of(size: int) -> pa.DataType:
    return pa.list_(pa.float32(), size)


def _batches(shard: Shard, store: RowStore, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The store's rows in their order, at most ROWS_PER_BATCH to a batch."""
    names = pa.array([table.name for table in store.group.tables], pa.string())
    places = np.zeros(shard.salts.size, np.int32)
    for place, table in enumerate(store.group.tables):
        places[table.number] = place
    for low, high in _windows(store):
        # A partition is a range of keys, so that the order of keys is that of partitions too.
        keys, tables, rows, scores = store.in_window(low, high)
        ids = np.empty_like(keys)
        hashing.recover_ids(keys, tables, shard.salts, ids)
        for first in range(0, keys.size, ROWS_PER_BATCH):
            part = slice(first, first + ROWS_PER_BATCH)
            table_column = pa.DictionaryArray.from_arrays(pa.array(places[tables[part]]), names)
            vectors = [
                pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
                for values in store.read_rows(rows[part]).values()
            ]
            columns = [table_column, pa.array(ids[part]), pa.array(scores[part]), *vectors]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _windows(store: RowStore) -> Iterator[tuple[int, int]]:
    """Yield stretches of whole partitions that hold about ROWS_PER_BATCH rows each, or one partition."""
    first, count = store.partitions.start, len(store.partitions)
    windows = min(max(1, store.used // ROWS_PER_BATCH), count)
    return pairwise(first + count * edge // windows for edge in range(windows + 1))


def _load_file(shard: Shard, path: Path, checksum: str | None) -> int:
    try:
        if checksum is not None:
            _verify(path, checksum)
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            return sum(
                _load_batch(shard, reader.get_batch(number), path) for number in range(reader.num_record_batches)
            )
    except FileNotFoundError as error:
        raise CheckpointError(f"the checkpoint has no file {path}") from error
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged or no file of a Persia checkpoint: {error}") from error


def _verify(path: Path, checksum: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != checksum:
        raise CheckpointError(f"{path} is not the file that was saved: its sha256 is {found}, not {checksum}")


def _load_batch(shard: Shard, batch: pa.RecordBatch, path: Path) -> int:
    """Insert the rows of one record batch that belong to the shard, group by group."""
    batch.validate(full=True)
    column = batch.column("table")
    places = column.indices.to_numpy()
    tables = _table_numbers(shard, column.dictionary.to_pylist(), np.unique(places), path)[places]
    ids, scores = batch.column("id").to_numpy(), batch.column("score").to_numpy()
    if scores.size and not 0 <= scores.min() <= scores.max() <= MAX_SCORE:
        raise CheckpointError(f"{path} is damaged: scores are from {scores.min()} to {scores.max()}")
    keys = np.empty(ids.size, np.uint64)
    hashing.hash_ids(ids, tables, shard.salts, keys)
    added = 0
    for store in shard.stores:
        group = store.group
        of_group = np.isin(tables, [table.number for table in group.tables])
        if not of_group.any():
            continue
        values = _values(batch, group, path)
        partitions = ((keys >> np.uint64(32)) * np.uint64(group.partitions)) >> np.uint64(32)
        own = (partitions >= store.partitions.start) & (partitions < store.partitions.stop)
        kept = np.flatnonzero(of_group & own)
        part = {name: columns[kept] for name, columns in values.items()}
        inserted = shard.insert(group.number, keys[kept], tables[kept], scores[kept], part)
        _require_all(store, inserted, path)
        added += inserted.added
    return added


def _table_numbers(shard: Shard, names: list[str], used: NDArray[np.int32], path: Path) -> NDArray[np.uint16]:
    """Table number by place in the file's dictionary; only the places that rows use must be known."""
    known = {table.name: table.number for table in shard.layout.tables()}
    unknown = [names[place] for place in used if names[place] not in known]
    if unknown:
        raise CheckpointError(
            f"{path} holds rows of table {unknown[0]!r}, which the config does not have; "
            f"its tables are {', '.join(known)}"
        )
    return np.array([known.get(name, 0) for name in names], np.uint16)


def _values(batch: pa.RecordBatch, group: GroupSpec, path: Path) -> dict[str, NDArray[np.float32]]:
    """float32[n, columns] of embedding and states; raises CheckpointError when they are not the group's."""
    expected = _vectors(group)
    found = {field.name: field.type for field in batch.schema if pa.types.is_fixed_size_list(field.type)}
    if found != {name: _list_of(size) for name, size in expected.items()}:
        names = ", ".join(table.name for table in group.tables)
        dims = ", ".join(str(dim) for dim in sorted({kind.list_size for kind in found.values()}))
        raise CheckpointError(
            f"{path} has columns {', '.join(found)} of dim {dims}; the config's "
            f"tables ({names}) have {', '.join(expected)} of dim {group.dim}: set model.dim and optimizer.embedding "
            "to what the checkpoint was trained with"
        )
    return {
        name: batch.column(name).flatten().to_numpy().reshape(batch.num_rows, size) for name, size in expected.items()
    }


def _require_all(store: RowStore, inserted: Inserted, path: Path) -> None:
    if inserted.refused:
        raise CheckpointError(
            f"{path} does not fit: feature group {store.group.number} has room for {store.capacity:,} rows on this "
            "server; give embedding.memory or embedding.capacity a higher value, or use more embedding servers"
        )
    if inserted.repeated:
        raise CheckpointError(
            f"{path} holds {inserted.repeated:,} rows that are there already: a file is listed or saved twice"
        )
