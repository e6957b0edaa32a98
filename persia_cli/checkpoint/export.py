"""Rows of a checkpoint for other programs: a table as Parquet or CSV, and the embeddings of chosen ids."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from persia_cli.checkpoint.content import RowBlock, SortedRows
from persia_cli.checkpoint.description import groups_of
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.read.decode import decode_ids
from persia_cli.disk import replacing
from persia_cli.errors import CheckpointError, UserError, one_line
from persia_cli.kernels.rows.splitmix import GOLDEN, mix64
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, SavedTable, read_manifest
from persia_cli.store.layout import TableSpec

KINDS = (".parquet", ".csv")
ROW_GROUP = 2**18
"""Rows of a row group of Parquet files."""


def require_exportable(manifest: Manifest, table: str, output: Path, overwrite: bool) -> None:
    """Raise UserError for a table that the checkpoint does not have, and for a file that cannot be the output."""
    if table == DENSE_TABLE:
        raise UserError(
            f"{DENSE_TABLE} has how far dense weights have moved; the weights themselves are in the checkpoint's file "
            "dense/dense.safetensors, which safetensors.numpy.load_file reads"
        )
    _require_table(manifest, table)
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
    exported = next(saved for saved in manifest.tables if saved.name == table)
    of = sum(saved.rows for saved in manifest.tables if saved.group == exported.group)
    written, done, is_flat = 0, 0, output.suffix == ".csv"
    with replacing(output) as part, _writer(part, output.suffix) as write:
        write(_columns(_no_rows(manifest, exported), is_flat, with_state, with_last_used))
        for block in SortedRows(folder, manifest, exported.group):
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
            columns |= {f"{column}_{number}": pa.array(values[:, number]) for number in range(values.shape[1])}
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
        if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
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


UNCHANGED = {"separator": None, "padding": None, "missing_id": None}
"""Settings of a feature without which each value is one id."""


def vectors_of(checkpoint: Location, run: Run, table: str, values: Sequence[Any]) -> NDArray[np.float32]:
    """Return the embedding of each value [values, dim], as the data has it; zeros for one without a row.

    Reads the rows of the table's feature group, and needs the memory of one record batch. Raises UserError for another
    table, DataError for values that are no ids, CheckpointError for a damaged checkpoint.
    """
    manifest = read_manifest(checkpoint)
    spec, dim = _spec_of(manifest, table)
    ids = _row_ids(spec, _ids_of(run, table, values))
    wanted, positions = np.unique(ids, return_inverse=True)
    embeddings = np.zeros((wanted.size, dim), np.float32)
    group = next(saved.group for saved in manifest.tables if saved.name == table)
    for block in SortedRows(checkpoint, manifest, group):
        rows = np.flatnonzero((block.tables == block.names.index(table)) & np.isin(block.ids, wanted))
        embeddings[np.searchsorted(wanted, block.ids[rows])] = block.vectors["embedding"][rows]
    summed: NDArray[np.float32] = embeddings[positions.reshape(ids.shape)].sum(axis=0)
    return summed


def _require_table(manifest: Manifest, table: str) -> None:
    names = [saved.name for saved in manifest.tables if saved.name != DENSE_TABLE]
    if table not in names:
        raise UserError(f"there is no table {table} in the checkpoint; it has {', '.join(names)}")


def _spec_of(manifest: Manifest, table: str) -> tuple[TableSpec, int]:
    _require_table(manifest, table)
    group = groups_of(manifest).get(table)
    if group is None:
        raise CheckpointError("the configuration of the checkpoint is from another version of persia")
    return next(spec for spec in group.tables if spec.name == table), group.dim


def _ids_of(run: Run, table: str, values: Sequence[Any]) -> NDArray[np.uint64]:
    """Return the ids of values by the rules of the first feature that reads the table."""
    dataset = run.dataset
    feature = SparseFeature(name=table, ids="integer")
    if isinstance(dataset, ParquetDataset):
        feature = next((sparse for sparse in dataset.sparse if sparse.table_name == table), feature)
    if isinstance(values, str):
        raise UserError(f"the ids of {table} must be a list, such as [{values!r}]")
    try:
        column = pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise UserError(f"the ids of {table} must be values of one type: {one_line(error)}") from error
    plain = feature.model_copy(update=UNCHANGED)
    return decode_ids(column, plain, False, f"ids of {table}", None, Counter(), "give ids as the data has them").values


def _row_ids(spec: TableSpec, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the ids of the rows whose sum is each id's embedding [rounds, ids]: see `kernels.hashing.keys_of_id`."""
    if not spec.rounds:
        return ids[None]
    size, high = np.uint64(spec.size), np.uint64(32)
    rounds = np.arange(spec.rounds, dtype=np.uint64)[:, None]
    with np.errstate(over="ignore"):
        chances = mix64(ids[None] + (rounds + np.uint64(1)) * GOLDEN) >> high
        chosen: NDArray[np.uint64] = rounds * size + (chances * size >> high)
    return chosen
