"""The rows of a shard as Arrow IPC files, which pandas and polars open as Feather and DuckDB through pyarrow.

There is one file per feature group and server, named after the group's partitions that the server owns; a server that
owns none writes none. Rows are ordered by partition, then key, then table number, so equal shards give equal files.
Embeddings are float32 in files for any dtype in memory, which is lossless. Loading places rows by their keys, so
any number of servers, with any number of partitions, can load any set of files.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.cold_files import save_cold
from persia_cli.store.checkpoints.frequency_files import Sketch, frequencies_of, frequency_file
from persia_cli.store.checkpoints.manifest import COLD, DELETED, FREQUENCIES
from persia_cli.store.checkpoints.record_batches import (
    FREQUENCY,
    arrow_numbers,
    floats_of,
    row_schema,
    table_column,
    write_rows,
)
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.cold.cold_rows import CutSegment
from persia_cli.store.layout import GroupSpec, partitions_of_keys
from persia_cli.store.row_store import MAX_STEP, Floats, Keys, LeftKeys, RowStore, Tables
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import SnapshotRows

ROWS_PER_BATCH = 65536
"""Approximate number of rows in memory at a time."""


def write_portions(
    shard: Shard,
    portions: Callable[[int], Iterable[SnapshotRows]],
    directory: Location,
    on_rows: Callable[[int], None],
    cold: Sequence[Sequence[CutSegment]] = (),
    left: Sequence[LeftKeys | None] = (),
) -> list[SavedFile]:
    """Write a snapshot: one file of rows per feature group, into `directory`; the files are on disk when this returns.

    The sketch of a group that has one is written to a file in the sibling folder FREQUENCIES, but not in a cut.

    `portions` returns the rows of a group, in order; it is called for one group after the other. The rows of `cold`,
    the cuts of each store's cold log, are written to the sibling folder COLD, and keys that have `left` each store to
    DELETED. Call `on_rows` with the number of rows of each portion written. Raise DiskError if a file cannot be
    written, and remove it, CheckpointError if too many keys have left a store.
    """
    # Only the constant parts of the shard are read, so this may run on another thread than the shard's.
    saved: list[SavedFile] = []
    if None in left:
        raise CheckpointError("more ids have lost their rows than can be noted")
    for store, keys in zip(shard.stores, left, strict=False):
        if len(store.partitions) and keys is not None:
            saved.append(_save_left(shard, store, keys, directory.parent / DELETED))
    for store in shard.stores:
        if not len(store.partitions):
            continue
        of_group = portions(store.group.number)
        if left:
            saved.append(_save_group(shard, store, of_group, directory, on_rows))
            continue
        with frequency_file(store, directory.parent / FREQUENCIES, saved) as write_lines:
            saved.append(_save_group(shard, store, _with_lines(of_group, write_lines), directory, on_rows))
    # Last, since portions of the snapshot hold up look-ups until they are taken.
    for store, cut in zip(shard.stores, cold, strict=False):
        saved += save_cold(store, cut, directory.parent / COLD, on_rows)
    return saved


def _save_left(shard: Shard, store: RowStore, left: LeftKeys, directory: Location) -> SavedFile:
    """Write the ids that have no row any more, in the order of keys."""
    schema, names = row_schema({}, has_frequency=False).remove(2), {t.name: t.number for t in store.group.tables}
    columns = [table_column(names, left[1]), arrow_numbers(shard.ids_of(*left))]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return write_rows(store.group, store.partitions, directory, schema, [batch], lambda rows: None)


def _with_lines(portions: Iterable[SnapshotRows], write_lines: Callable[[int, Sketch], None]) -> Iterator[SnapshotRows]:
    """Yield portions, and write the lines of each."""
    for portion in portions:
        write_lines(portion.first_line, portion.lines)
        yield portion


@dataclass
class Progress:
    """The progress of loading; its numbers only rise."""

    bytes_read: int = 0
    rows_loaded: int = 0

    def add_bytes(self, nbytes: int) -> None:
        """Count bytes that were read."""
        self.bytes_read += nbytes


def load_shard(shard: Shard, files: Sequence[RowFile], progress: Progress | None = None) -> int:
    """Add those rows of the files whose keys are in the shard's partitions; return the shard's number of rows then.

    Files without such rows are not read. Of the others, the content is compared with the checksum, and the number of
    rows of each table with the number saved. Embeddings are rounded to the nearest value of their dtype in memory. If a
    partition overflows although the shard as a whole has space, the least recently used rows are left out and counted.
    Raise CheckpointError for a missing, damaged or altered file, rows of another shape than the config's, unknown
    tables, repeated rows, and more rows than fit into the shard.
    """
    progress = progress or Progress()
    for file in files:
        if _may_have_rows_of(shard, file.rows):
            with file.checked_batches(progress.add_bytes) as batches:
                for batch in batches:
                    progress.rows_loaded += _load_batch(shard, batch, file.rows, file.path)
    return sum(store.row_count for store in shard.stores)


def _may_have_rows_of(shard: Shard, rows: SavedRows) -> bool:
    """Return True if the shard may own rows of a file, or if the config does not have one of its tables.

    The file and the shard each cover a range of keys, as partitions whose total numbers may differ.
    """
    groups = {table.name: group.number for group in shard.layout.groups for table in group.tables}
    if not rows.tables.keys() <= groups.keys():
        return True
    return any(in_range(shard.stores[number], rows) for number in {groups[name] for name in rows.tables})


def in_range(store: RowStore, rows: SavedRows) -> bool:
    """Return True if the range of keys of a file and that of a store have keys in common."""
    first, stop, of = store.partitions.start, store.partitions.stop, store.group.partitions
    return first < stop and rows.first * of < stop * rows.partitions and first * rows.partitions < rows.stop * of


def _save_group(
    shard: Shard,
    store: RowStore,
    portions: Iterable[SnapshotRows],
    directory: Location,
    on_rows: Callable[[int], None],
) -> SavedFile:
    schema = row_schema(store.group.vectors, store.group.counts_uses)
    return write_rows(
        store.group, store.partitions, directory, schema, _batches(shard, store, portions, schema), on_rows
    )


def _batches(
    shard: Shard, store: RowStore, portions: Iterable[SnapshotRows], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a store's snapshot; a batch must not be used any more when the next one is requested."""
    group, names = store.group, {table.name: table.number for table in store.group.tables}
    last = -1
    for portion in portions:
        if portion.keys.size:
            assert last <= int(portion.keys[0]) <= int(portion.keys[-1]), "rows are not in the order of keys"
            last = int(portion.keys[-1])
        parts = portion.parts(store.group)
        ids = shard.ids_of(portion.keys, portion.tables)
        for first in range(0, ids.size, ROWS_PER_BATCH):
            part = slice(first, first + ROWS_PER_BATCH)
            last_used, uses = portion.last_used[part], portion.uses[part]
            counted = [arrow_numbers(frequencies_of(uses, last_used, group.epoch_bits))] if group.counts_uses else []
            columns = [
                table_column(names, portion.tables[part]),
                arrow_numbers(ids[part]),
                arrow_numbers(last_used.astype(np.int64)),
                *counted,
                *(
                    pa.FixedSizeListArray.from_arrays(arrow_numbers(v[part].reshape(-1)), v.shape[1])
                    for v in parts.values()
                ),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _load_batch(shard: Shard, batch: pa.RecordBatch, saved: SavedRows, path: Location) -> int:
    """Insert the rows of one record batch that belong to the shard, group by group; returns their number."""
    column = batch.column("table")
    positions = column.indices.to_numpy()
    used = np.flatnonzero(np.bincount(positions, minlength=len(column.dictionary)))
    tables = _table_numbers(shard, column.dictionary.to_pylist(), used, path)[positions]
    ids, last_used = batch.column("id").to_numpy(), batch.column("last_used").to_numpy()
    frequencies = batch.column(FREQUENCY).to_numpy() if FREQUENCY in batch.schema.names else None
    if last_used.size and not 0 <= last_used.min() <= last_used.max() <= MAX_STEP:
        raise CheckpointError(
            f"{path} is damaged: the column last_used has values from {last_used.min()} to {last_used.max()}"
        )
    keys = shard.keys_of(ids, tables)
    positions = partitions_of_keys(keys, saved.partitions)
    if positions.size and not saved.first <= positions.min() <= positions.max() < saved.stop:
        raise CheckpointError(f"{path} has rows of other partitions than {saved.first} to {saved.stop - 1}")
    added = 0
    for store in shard.stores:
        group = store.group
        in_group = np.zeros(shard.salts.size, np.bool_)
        in_group[[table.number for table in group.tables]] = True
        of_group = in_group[tables]
        if not of_group.any():
            continue
        values = _values(batch, group, path)
        owned = of_group & store.owns(keys)
        if owned.all():
            insert_rows(shard, store, keys, tables, last_used, values, frequencies, path)
        else:
            part = {name: columns[owned] for name, columns in values.items()}
            counted = None if frequencies is None else frequencies[owned]
            insert_rows(shard, store, keys[owned], tables[owned], last_used[owned], part, counted, path)
        added += int(np.count_nonzero(owned))
    return added


def insert_rows(
    shard: Shard,
    store: RowStore,
    keys: Keys,
    tables: Tables,
    last_used: NDArray[np.int64],
    vectors: dict[str, Floats],
    frequencies: NDArray[np.uint8] | None,
    path: Location,
) -> None:
    """Call `Shard.insert`; raise CheckpointError for rows that exist already or do not fit."""
    repeated = shard.insert(store.group.number, keys, tables, last_used, vectors, frequencies)
    if repeated:
        raise CheckpointError(f"{path} has {repeated:,} rows that were loaded already: use another checkpoint")
    require_space(shard, store, path)


def _table_numbers(shard: Shard, names: list[str], used: NDArray[np.int64], path: Location) -> NDArray[np.uint16]:
    """Return table numbers by position in the file's dictionary; only the positions that rows use must be known."""
    known = {table.name: table.number for table in shard.layout.tables()}
    unknown = [names[position] for position in used if names[position] not in known]
    if unknown:
        raise CheckpointError(
            f"{path} has rows of table {unknown[0]!r}, which the config does not have; "
            f"its tables are {', '.join(known)}"
        )
    return np.array([known.get(name, 0) for name in names], np.uint16)


def _values(batch: pa.RecordBatch, group: GroupSpec, path: Location) -> dict[str, NDArray[np.float32]]:
    """Return embedding and states, float32[n, columns]; raise CheckpointError if they are not those of the group."""
    expected = group.vectors
    vectors = {field.name: field.type for field in batch.schema if pa.types.is_fixed_size_list(field.type)}
    if vectors != {name: floats_of(size) for name, size in expected.items()}:
        names = ", ".join(table.name for table in group.tables)
        dims = ", ".join(str(dim) for dim in sorted({kind.list_size for kind in vectors.values()}))
        raise CheckpointError(
            f"{path} has columns {', '.join(vectors)} of dim {dims}; the config's "
            f"tables ({names}) have {', '.join(expected)} of dim {group.dim}: set model.dim and optimizer.embedding "
            "to the values that the checkpoint was trained with"
        )
    return {
        name: batch.column(name).flatten().to_numpy().reshape(batch.num_rows, size) for name, size in expected.items()
    }


def require_space(shard: Shard, store: RowStore, path: Location | str) -> None:
    """Raise CheckpointError if the rows loaded for the group so far do not fit into its store."""
    counters = shard.counters()
    rows = store.used + sum(counters[table.name].left_out for table in store.group.tables)
    names = ", ".join(table.name for table in store.group.tables)
    if store.cold is not None and store.cold.dropped.any():
        raise CheckpointError(
            f"{path} does not fit: this server has no space in memory and on disk for more than {store.row_count:,} "
            f"rows of tables {names}; give embedding.cold.size a higher value"
        )
    if store.cold is None and rows > store.capacity:
        raise CheckpointError(
            f"{path} does not fit: there are at least {rows:,} rows for this server of the tables that share "
            f"memory ({names}), but only {store.capacity:,} fit; give {shard.layout.budget} a higher value"
        )
