"""A shard's rows in Arrow IPC files, which pandas, polars and DuckDB open as Feather; and back.

One file per feature group and server, named after its partitions; any number of servers can load any set of files.
Rows lie by key, then table number, so equal shards give equal files.
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
from persia_cli.store.row_store import MAX_SCORE
from persia_cli.store.shard import Shard

ROWS_PER_BATCH = 65536
"""About how many rows are in memory at a time."""
PARTITIONS_KEY = b"persia.num_partitions"


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
    return [_save_group(shard, number, directory, on_rows) for number in range(len(shard.stores))]


def load_shard(shard: Shard, directory: Path, names: Sequence[str], checksums: Mapping[str, str] | None = None) -> int:
    """Add the rows of the files' keys that are in the shard's partitions; returns how many.

    `checksums` gives the expected sha256 by file name. Raises CheckpointError for a missing, damaged or altered file,
    rows of another shape than the config's, unknown tables, repeated rows and rows beyond the capacity.
    """
    return sum(_load_file(shard, directory / name, (checksums or {}).get(name)) for name in names)


def _save_group(shard: Shard, number: int, directory: Path, on_rows: Callable[[int], None]) -> SavedFile:
    first, last = shard.partitions.start, shard.partitions.stop - 1
    name = f"group-{number}-partitions-{first:04d}-{last:04d}.arrow"
    group = shard.layout.groups[number]
    schema = _schema(group).with_metadata({PARTITIONS_KEY: str(shard.layout.num_partitions)})
    rows = 0
    with _HashingFile(directory / name) as file:
        with (
            pa.PythonFile(file, mode="w") as sink,
            pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer,
        ):
            for batch in _batches(shard, number, schema):
                writer.write_batch(batch)
                rows += batch.num_rows
                on_rows(batch.num_rows)
        nbytes, sha256 = file.nbytes, file.sha256()
    return SavedFile(directory.name, name, nbytes, sha256, number, rows)


def _schema(group: GroupSpec) -> pa.Schema:
    vector = pa.list_(pa.float32(), group.dim)
    fields = [
        pa.field("table", pa.dictionary(pa.int32(), pa.string())),
        pa.field("id", pa.uint64()),
        pa.field("score", pa.int64()),
        pa.field("embedding", vector),
    ]
    return pa.schema(fields + [pa.field(state, vector) for state in group.optimizer.states])


def _batches(shard: Shard, number: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The group's rows in key order, a window of the key range at a time."""
    store, group = shard.stores[number], shard.layout.groups[number]
    names = pa.array([table.name for table in group.tables], pa.string())
    places = np.zeros(shard.salts.size, np.int32)
    for place, table in enumerate(group.tables):
        places[table.number] = place
    windows = min(max(1, store.used // ROWS_PER_BATCH), store.span)
    edges = [store.first + store.span * window // windows for window in range(windows + 1)]
    for low, high in pairwise(edges):
        keys, tables, rows = store.in_window(low, high)
        ids = np.empty_like(keys)
        hashing.recover_ids(keys, tables, shard.salts, ids)
        values = store.values()[rows]
        vectors = [
            pa.FixedSizeListArray.from_arrays(
                pa.array(np.ascontiguousarray(values[:, start : start + group.dim]).reshape(-1)), group.dim
            )
            for start in range(0, (1 + len(group.optimizer.states)) * group.dim, group.dim)
        ]
        table_column = pa.DictionaryArray.from_arrays(pa.array(places[tables]), names)
        columns = [table_column, pa.array(ids), pa.array(store.scores(rows)), *vectors]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _load_file(shard: Shard, path: Path, checksum: str | None) -> int:
    try:
        if checksum is not None:
            _verify(path, checksum)
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
            _check_partitions(shard, reader.schema, path)
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


def _check_partitions(shard: Shard, schema: pa.Schema, path: Path) -> None:
    saved, ours = int((schema.metadata or {})[PARTITIONS_KEY]), shard.layout.num_partitions
    if saved != ours:
        raise CheckpointError(
            f"{path} was saved with {saved} partitions, the config has {ours}: set embedding.num_partitions={saved}"
        )


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
    partitions = ((keys >> np.uint64(32)) * np.uint64(shard.layout.num_partitions)) >> np.uint64(32)
    own = (partitions >= shard.partitions.start) & (partitions < shard.partitions.stop)
    added = 0
    for number, group in enumerate(shard.layout.groups):
        kept = np.flatnonzero(own & np.isin(tables, [table.number for table in group.tables]))
        if kept.size:
            values = _values(batch, group, path)[kept]
            count = shard.insert(number, keys[kept], tables[kept], scores[kept], values)
            _require_all(shard, number, int(kept.size) - count, path)
            added += count
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


def _values(batch: pa.RecordBatch, group: GroupSpec, path: Path) -> NDArray[np.float32]:
    """float32[n, (1 + states) * dim] of a record batch; raises CheckpointError when its shape is not the group's."""
    expected = ["embedding", *group.optimizer.states]
    vectors = {field.name: field.type for field in batch.schema if pa.types.is_fixed_size_list(field.type)}
    if vectors != dict.fromkeys(expected, pa.list_(pa.float32(), group.dim)):
        names = ", ".join(table.name for table in group.tables)
        dims = ", ".join(str(dim) for dim in sorted({kind.list_size for kind in vectors.values()}))
        raise CheckpointError(
            f"{path} has columns {', '.join(vectors)} of dim {dims}; the config's "
            f"tables ({names}) have {', '.join(expected)} of dim {group.dim}: set model.dim and optimizer.embedding "
            "to what the checkpoint was trained with"
        )
    return np.concatenate(
        [batch.column(name).flatten().to_numpy().reshape(batch.num_rows, group.dim) for name in expected], axis=1
    )


def _require_all(shard: Shard, number: int, left: int, path: Path) -> None:
    if not left:
        return
    store = shard.stores[number]
    if store.used == store.capacity:
        raise CheckpointError(
            f"{path} does not fit: feature group {number} has room for {store.capacity:,} rows on this server; "
            "give embedding.memory or embedding.capacity a higher value, or use more embedding servers"
        )
    raise CheckpointError(f"{path} holds {left:,} rows that are there already: a file is listed or saved twice")
