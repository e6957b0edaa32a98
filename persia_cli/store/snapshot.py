"""The rows of a shard as Arrow IPC files, which pandas and polars open as Feather and DuckDB through pyarrow.

There is one file per feature group and server, named after the group's partitions that the server owns; a server that
owns none writes none. Rows are ordered by partition, then key, then table number, so equal shards give equal files.
Embeddings are float32 in files whatever their dtype in memory, which is lossless. Loading places rows by their keys, so
any number of servers, with any number of partitions, can load any set of files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError
from persia_cli.kernels import hashing
from persia_cli.storage.hashing_file import HashingFile
from persia_cli.storage.places import Place, writing_file
from persia_cli.store.cut import CutRows
from persia_cli.store.layout import GroupSpec
from persia_cli.store.manifest import verify
from persia_cli.store.row_store import MAX_STEP, RowStore
from persia_cli.store.shard import Shard
from persia_cli.store.table_stats import record_batches
from persia_cli.wire.figures import SavedFile, SavedRows

ROWS_PER_BATCH = 65536
"""Approximate number of rows in memory at a time."""
PARTITIONS_KEY = b"persia.partitions"
"""Metadata key for the group's number of partitions when it was saved; only people read it."""


def save_shard(shard: Shard, directory: Place, on_rows: Callable[[int], None] = lambda rows: None) -> list[SavedFile]:
    """Write one file per feature group into `directory`; the files are safe when this returns.

    Calls `on_rows` with the number of rows of each portion written. Raises DiskError if a file cannot be written, and
    removes that file.
    """
    cut = shard.begin_cut()
    try:
        return write_portions(shard, cut.portions, directory, on_rows)
    finally:
        shard.end_cut()


def write_portions(
    shard: Shard, portions: Callable[[int], Iterable[CutRows]], directory: Place, on_rows: Callable[[int], None]
) -> list[SavedFile]:
    """Write what `save_shard` does from the rows of a cut; `portions` returns those of a group, in order.

    It is called for one group after the other. Only what never changes of the shard is read, so this may run on a
    thread beside the one that owns the shard.
    """
    return [
        _save_group(shard, store, portions(store.group.number), directory, on_rows)
        for store in shard.stores
        if len(store.partitions)
    ]


@dataclass
class Progress:
    """The progress of loading; its numbers only rise."""

    bytes_read: int = 0
    rows_loaded: int = 0

    def add_bytes(self, nbytes: int) -> None:
        """Count bytes that were read."""
        self.bytes_read += nbytes


def load_shard(shard: Shard, directory: Place, files: Sequence[SavedFile], progress: Progress | None = None) -> int:
    """Add those rows of the files whose keys are in the shard's partitions; returns the shard's number of rows then.

    Files without such rows are not read. Of the others, the content is compared with the checksum, and the number of
    rows of each table with the number saved. Embeddings are rounded to the nearest value of their dtype in memory. If a
    partition overflows although the shard as a whole has room, the least recently used rows are left out and counted.
    Raises CheckpointError for a missing, damaged or altered file, rows of another shape than the config's, unknown
    tables, repeated rows, and more rows than the shard has room for.
    """
    progress = progress or Progress()
    for file in files:
        if file.rows is not None and _concerns(shard, file.rows):
            path = directory / file.name
            verify(path, file, progress.add_bytes)
            _load_file(shard, path, file.rows, progress)
    return sum(store.used for store in shard.stores)


def _concerns(shard: Shard, rows: SavedRows) -> bool:
    """Return True if the shard may own rows of a file, or if the config does not have one of its tables.

    The file and the shard each cover a range of keys, as partitions whose total numbers may differ.
    """
    groups = {table.name: group.number for group in shard.layout.groups for table in group.tables}
    if not rows.tables.keys() <= groups.keys():
        return True
    return any(in_range(shard.stores[number], rows) for number in {groups[name] for name in rows.tables})


def in_range(store: RowStore, rows: SavedRows) -> bool:
    """Return True if the range of keys of a file and that of a store have keys in common."""
    own, of = store.partitions, store.group.partitions
    overlaps = rows.first * of < own.stop * rows.partitions and own.start * rows.partitions < rows.stop * of
    return bool(own) and overlaps


def _save_group(
    shard: Shard, store: RowStore, portions: Iterable[CutRows], directory: Place, on_rows: Callable[[int], None]
) -> SavedFile:
    group = store.group
    name = f"group-{group.number}-partitions-{store.partitions.start:04d}-{store.partitions.stop - 1:04d}.arrow"
    path = directory / name
    schema = _schema(group).with_metadata({PARTITIONS_KEY: str(group.partitions)})
    rows: Counter[str] = Counter()
    with writing_file(path) as sink:
        file = HashingFile(sink)
        with (
            pa.PythonFile(file, mode="w") as out,
            pa.ipc.new_file(out, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer,
        ):
            for batch in _batches(shard, store, portions, schema):
                writer.write_batch(batch)
                rows.update(_rows_by_table(batch))
                on_rows(batch.num_rows)
    saved = SavedRows(group.number, group.partitions, store.partitions.start, store.partitions.stop, dict(rows))
    return SavedFile(directory.name, name, file.nbytes, file.sha256(), saved)


def _rows_by_table(batch: pa.RecordBatch) -> dict[str, int]:
    """Return the number of rows of each table that has any in a record batch."""
    return {each["values"]: each["counts"] for each in batch.column("table").value_counts().to_pylist()}


def _vectors(group: GroupSpec) -> dict[str, int]:
    """Return the vector columns, which are the embedding and the optimizer's states, and the size of each."""
    return {"embedding": group.dim, **group.optimizer.states(group.dim)}


def _schema(group: GroupSpec) -> pa.Schema:
    fields = [
        pa.field("table", pa.dictionary(pa.int32(), pa.string())),
        pa.field("id", pa.uint64()),
        pa.field("last_used", pa.int64()),
    ]
    return pa.schema(fields + [pa.field(name, _list_of(size)) for name, size in _vectors(group).items()])


def _list_of(size: int) -> pa.DataType:
    return pa.list_(pa.float32(), size)


def _batches(shard: Shard, store: RowStore, portions: Iterable[CutRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a store's cut in their order, at most ROWS_PER_BATCH to a batch."""
    names = pa.array([table.name for table in store.group.tables], pa.string())
    places = np.zeros(shard.salts.size, np.int32)
    for place, table in enumerate(store.group.tables):
        places[table.number] = place
    for portion in portions:
        # A partition is a range of keys, so the order of keys is the order of partitions too.
        order = _order(portion.keys, portion.tables)
        keys, tables, last_used = portion.keys[order], portion.tables[order], portion.last_used[order].astype(np.int64)
        ids = np.empty_like(keys)
        hashing.recover_ids(keys, tables, shard.salts, ids)
        for first in range(0, keys.size, ROWS_PER_BATCH):
            part = slice(first, first + ROWS_PER_BATCH)
            table_column = pa.DictionaryArray.from_arrays(pa.array(places[tables[part]]), names)
            vectors = [
                pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
                for values in store.split(portion.words.take(order[part], axis=0)).values()
            ]
            columns = [table_column, pa.array(ids[part]), pa.array(last_used[part]), *vectors]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _order(keys: NDArray[np.uint64], tables: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Return the order by key, then table number, of distinct (key, table)."""
    order = np.argsort(keys)
    ordered = keys[order]
    # Two tables rarely have rows of equal keys, and sorting by two columns takes three times as long.
    return np.lexsort((tables, keys)) if np.any(ordered[1:] == ordered[:-1]) else order


def _load_file(shard: Shard, path: Place, saved: SavedRows, progress: Progress) -> None:
    rows: Counter[str] = Counter()
    with record_batches(path) as batches:
        for batch in batches:
            progress.rows_loaded += _load_batch(shard, batch, saved, path)
            rows.update(_rows_by_table(batch))
    if dict(rows) != saved.tables:
        raise CheckpointError(f"{path} has {dict(rows)} rows of its tables, but {saved.tables} were saved")


def _load_batch(shard: Shard, batch: pa.RecordBatch, saved: SavedRows, path: Place) -> int:
    """Insert the rows of one record batch that belong to the shard, group by group; returns their number."""
    batch.validate(full=True)
    column = batch.column("table")
    places = column.indices.to_numpy()
    tables = _table_numbers(shard, column.dictionary.to_pylist(), np.unique(places), path)[places]
    ids, last_used = batch.column("id").to_numpy(), batch.column("last_used").to_numpy()
    if last_used.size and not 0 <= last_used.min() <= last_used.max() <= MAX_STEP:
        raise CheckpointError(
            f"{path} is damaged: the column last_used has values from {last_used.min()} to {last_used.max()}"
        )
    keys = np.empty(ids.size, np.uint64)
    hashing.hash_ids(ids, tables, shard.salts, keys)
    places = partitions_of_keys(keys, saved.partitions)
    if places.size and not saved.first <= places.min() <= places.max() < saved.stop:
        raise CheckpointError(f"{path} has rows of other partitions than {saved.first} to {saved.stop - 1}")
    added = 0
    for store in shard.stores:
        group = store.group
        of_group = np.isin(tables, [table.number for table in group.tables])
        if not of_group.any():
            continue
        values = _values(batch, group, path)
        partitions = partitions_of_keys(keys, group.partitions)
        own = (partitions >= store.partitions.start) & (partitions < store.partitions.stop)
        kept = np.flatnonzero(of_group & own)
        part = {name: columns[kept] for name, columns in values.items()}
        repeated = shard.insert(group.number, keys[kept], tables[kept], last_used[kept], part)
        if repeated:
            raise CheckpointError(
                f"{path} has {repeated:,} rows that were loaded already: a file is listed or saved twice"
            )
        require_room(shard, store, path)
        added += kept.size
    return added


def partitions_of_keys(keys: NDArray[np.uint64], partitions: int) -> NDArray[np.uint64]:
    """Return the partition of each key, out of `partitions`."""
    return ((keys >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


def _table_numbers(shard: Shard, names: list[str], used: NDArray[np.int32], path: Place) -> NDArray[np.uint16]:
    """Return table numbers by position in the file's dictionary; only the positions that rows use must be known."""
    known = {table.name: table.number for table in shard.layout.tables()}
    unknown = [names[place] for place in used if names[place] not in known]
    if unknown:
        raise CheckpointError(
            f"{path} has rows of table {unknown[0]!r}, which the config does not have; "
            f"its tables are {', '.join(known)}"
        )
    return np.array([known.get(name, 0) for name in names], np.uint16)


def _values(batch: pa.RecordBatch, group: GroupSpec, path: Place) -> dict[str, NDArray[np.float32]]:
    """Return embedding and states, float32[n, columns]; raises CheckpointError if they are not those of the group."""
    expected = _vectors(group)
    found = {field.name: field.type for field in batch.schema if pa.types.is_fixed_size_list(field.type)}
    if found != {name: _list_of(size) for name, size in expected.items()}:
        names = ", ".join(table.name for table in group.tables)
        dims = ", ".join(str(dim) for dim in sorted({kind.list_size for kind in found.values()}))
        raise CheckpointError(
            f"{path} has columns {', '.join(found)} of dim {dims}; the config's "
            f"tables ({names}) have {', '.join(expected)} of dim {group.dim}: set model.dim and optimizer.embedding "
            "to the values that the checkpoint was trained with"
        )
    return {
        name: batch.column(name).flatten().to_numpy().reshape(batch.num_rows, size) for name, size in expected.items()
    }


def require_room(shard: Shard, store: RowStore, path: Place | str) -> None:
    """Raise CheckpointError if the rows loaded for the group so far are more than its store has room for."""
    counters = shard.counters()
    rows = store.used + sum(counters[table.name].left_out for table in store.group.tables)
    if rows > store.capacity:
        names = ", ".join(table.name for table in store.group.tables)
        raise CheckpointError(
            f"{path} does not fit: there are at least {rows:,} rows for this server of the tables that share "
            f"memory ({names}), and there is room for {store.capacity:,}; give embedding.memory or embedding.capacity "
            "a higher value"
        )
