"""Samples in an Arrow file, as the input of a network: `dense`, and the ids of each feature, named `ids:FEATURE`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch, assemble


def columns_of_batch(batch: Batch, features: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a batch whose features have these names."""
    columns: dict[str, Any] = {"dense": _vectors(batch.dense)}
    for number, name in enumerate(features):
        bounds = batch.offsets[number * batch.size : (number + 1) * batch.size + 1].astype(np.int64)
        ids = pa.array(batch.ids[bounds[0] : bounds[-1]])
        columns[f"ids:{name}"] = pa.LargeListArray.from_arrays(pa.array(bounds - bounds[0]), ids)
    return columns


def batch_of_table(table: Any, features: Sequence[str], dense: int, tasks: int) -> Batch:
    """Return the batch of a table with these columns, and labels of 0; copied, so its file may be unmapped.

    Raises KeyError, ValueError or AttributeError for a table of other columns.
    """
    lists = [column_of(table, f"ids:{name}") for name in features]
    values = column_of(table, "dense").flatten().to_numpy() if dense else np.empty(0, np.float32)
    return assemble(
        dense=np.array(values.reshape(table.num_rows, dense), np.float32),
        labels=np.zeros((table.num_rows, tasks), np.float32),
        weights=None,
        ids=[np.array(ids.values.to_numpy(), np.uint64) for ids in lists],
        offsets=[np.array(ids.offsets.to_numpy(), np.int64) for ids in lists],
    )


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table of at most one chunk as an array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _vectors(values: NDArray[np.float32]) -> Any:
    if not values.shape[1]:  # from_arrays does not take a size of 0
        return pa.array([[]] * len(values), pa.list_(pa.float32(), 0))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
