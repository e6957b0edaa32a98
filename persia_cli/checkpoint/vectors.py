"""The embeddings of chosen ids in a checkpoint."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.checkpoint.description import groups_of
from persia_cli.checkpoint.rows import SortedRows
from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.config.schema.features import SparseFeature
from persia_cli.data.read.decode import decode_ids
from persia_cli.errors import CheckpointError, UserError, one_line
from persia_cli.kernels.rows.splitmix import GOLDEN, mix64
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.store.layout import TableSpec

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
    wanted, places = np.unique(ids, return_inverse=True)
    found = np.zeros((wanted.size, dim), np.float32)
    group = next(each.group for each in manifest.tables if each.name == table)
    for block in SortedRows(checkpoint, manifest, group):
        rows = np.flatnonzero((block.tables == block.names.index(table)) & np.isin(block.ids, wanted))
        found[np.searchsorted(wanted, block.ids[rows])] = block.vectors["embedding"][rows]
    summed: NDArray[np.float32] = found[places.reshape(ids.shape)].sum(axis=0)
    return summed


def _spec_of(manifest: Manifest, table: str) -> tuple[TableSpec, int]:
    names = [each.name for each in manifest.tables if each.name != DENSE_TABLE]
    if table not in names:
        raise UserError(f"there is no table {table} in the checkpoint; it has {', '.join(names)}")
    group = groups_of(manifest).get(table)
    if group is None:
        raise CheckpointError("the configuration of the checkpoint is from another version of persia")
    return next(each for each in group.tables if each.name == table), group.dim


def _ids_of(run: Run, table: str, values: Sequence[Any]) -> NDArray[np.uint64]:
    """Return the ids of values by the rules of the first feature that reads the table."""
    dataset = run.dataset
    feature = SparseFeature(name=table, ids="integer")
    if isinstance(dataset, ParquetDataset):
        feature = next((each for each in dataset.sparse if each.table_name == table), feature)
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
