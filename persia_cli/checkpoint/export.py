"""The export of a table of a checkpoint: a file of ids and vectors for other programs, as Parquet or CSV."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from persia_cli.checkpoint.description import groups_of
from persia_cli.checkpoint.rows import RowBlock, SortedRows
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.disk import replacing
from persia_cli.errors import UserError
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, SavedTable

KINDS = (".parquet", ".csv")
ROW_GROUP = 2**18
"""Rows of a row group of Parquet files."""


def require_exportable(manifest: Manifest, table: str, output: Path, overwrite: bool) -> None:
    """Raise UserError for a table that the checkpoint does not have, and for a file that cannot be the output."""
    names = [each.name for each in manifest.tables if each.name != DENSE_TABLE]
    if table == DENSE_TABLE:
        raise UserError(
            f"{DENSE_TABLE} has how far dense weights have moved; the weights themselves are in the checkpoint's file "
            "dense/dense.safetensors, which safetensors.numpy.load_file reads"
        )
    if table not in names:
        raise UserError(f"there is no table {table} in the checkpoint; it has {', '.join(names)}")
    if output.suffix not in KINDS:
        raise UserError(f"--output {output}: the name must end with {' or '.join(KINDS)}, which selects the format")
    if output.is_dir():
        raise UserError(f"--output {output} is a folder; give the name of a file in it")
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists already; choose another name, or give --overwrite")
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}")


def export_table(
    folder: Location,
    manifest: Manifest,
    table: str,
    output: Path,
    with_state: bool = False,
    with_last_used: bool = False,
    on_rows: Callable[[int, int], None] = lambda done, of: None,
) -> int:
    """Write the rows of a table in the order of their keys; returns their number.

    Columns are `id` (uint64), `last_used` (int64) if requested, `vector`, and the states of the optimizer if requested.
    In Parquet vectors are lists of float32 of fixed size; a CSV file has a column for each value, `vector_0` and so on.
    The file appears when it is complete. Calls `on_rows` with the number of rows read so far and the total. Raises
    CheckpointError for a damaged checkpoint, DiskError.
    """
    found = next(each for each in manifest.tables if each.name == table)
    of = sum(each.rows for each in manifest.tables if each.group == found.group)
    written, done, is_flat = 0, 0, output.suffix == ".csv"
    with replacing(output) as part, _writer(part, output.suffix) as write:
        write(_columns(_no_rows(manifest, found), is_flat, with_state, with_last_used))
        for block in SortedRows(folder, manifest, found.group):
            rows = block.part(block.tables == block.names.index(table))
            write(_columns(rows, is_flat, with_state, with_last_used))
            written += rows.keys.size
            done += block.keys.size
            on_rows(done, of)
    return written


def _no_rows(manifest: Manifest, table: SavedTable) -> RowBlock:
    """Return an empty block of a table, since an empty table has columns too."""
    group = groups_of(manifest).get(table.name)
    vectors = {"embedding": table.dim, **(group.optimizer.states(group.dim) if group else {})}
    return RowBlock(
        names=[table.name],
        keys=np.empty(0, np.uint64),
        tables=np.empty(0, np.uint16),
        ids=np.empty(0, np.uint64),
        last_used=np.empty(0, np.int64),
        vectors={name: np.empty((0, size), np.float32) for name, size in vectors.items()},
    )


def _columns(rows: RowBlock, is_flat: bool, with_state: bool, with_last_used: bool) -> pa.RecordBatch:
    columns: dict[str, Any] = {"id": pa.array(rows.ids)}
    if with_last_used:
        columns["last_used"] = pa.array(rows.last_used)
    for name, values in rows.vectors.items():
        if name != "embedding" and not with_state:
            continue
        column = "vector" if name == "embedding" else name
        if is_flat:
            columns |= {f"{column}_{place}": pa.array(values[:, place]) for place in range(values.shape[1])}
        else:
            columns[column] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.RecordBatch.from_pydict(columns)


@contextmanager
def _writer(path: Path, suffix: str) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that writes record batches of one schema; portions are collected into row groups."""
    writers: list[Any] = []
    waiting: list[pa.RecordBatch] = []

    def flush() -> None:
        if waiting:
            rows = pa.Table.from_batches(waiting)
            writers[0].write_table(rows) if suffix == ".csv" else writers[0].write_table(rows, row_group_size=ROW_GROUP)
            waiting.clear()

    def write(batch: pa.RecordBatch) -> None:
        if not writers:
            writers.append(_opened(path, suffix, batch.schema))
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= ROW_GROUP:
            flush()

    try:
        yield write
        flush()
    finally:
        for writer in writers:
            writer.close()


def _opened(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return pyarrow.csv.CSVWriter(path, schema)
    return pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
