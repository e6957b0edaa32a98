"""Arrow columns to arrays, checked: what is missing, out of range or too long."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import SparseFeature
from persia_cli.data.columns import is_list, is_text
from persia_cli.data.ids import text_ids
from persia_cli.errors import DataError

Rows = NDArray[np.int64] | None
"""Rows wanted, or None for all."""


class Ids(NamedTuple):
    """Ids of a feature: uint64 values and, unless each sample has exactly one, int64 offsets [samples + 1]."""

    values: NDArray[np.uint64]
    offsets: NDArray[np.int64] | None


def decode_labels(column: Any, name: str, where: object, rows: Rows) -> NDArray[np.float32]:
    """Return labels; raises DataError where one is null or not within [0, 1]."""
    values = _float32(column, rows)
    remedy = "a label lies between 0 and 1; drop or correct these rows"
    _check((values >= 0.0) & (values <= 1.0), values, rows, f"label column {name}", where, remedy)
    return values


def decode_weights(column: Any, name: str, where: object, rows: Rows) -> NDArray[np.float32]:
    """Return sample weights; raises DataError where one is null, not finite or negative."""
    values = _float32(column, rows)
    remedy = "a weight is finite and not negative; drop or correct these rows"
    _check(np.isfinite(values) & (values >= 0.0), values, rows, f"weight column {name}", where, remedy)
    return values


def decode_dense(
    column: Any, name: str, where: object, rows: Rows, fill: float | None, counts: Counter[str]
) -> NDArray[np.float32]:
    """Return dense values with `fill` in place of null and non-finite ones; raises DataError if there is no `fill`."""
    values = _float32(column, rows)
    good = np.isfinite(values)
    if fill is None:
        remedy = "set dataset.fill to a value to put in their place, or clean the data"
        _check(good, values, rows, f"dense column {name}", where, remedy)
    elif not good.all():
        counts["filled_dense_values"] += int(good.size - np.count_nonzero(good))
        values = np.where(good, values, np.float32(fill))
    return values


def decode_ids(column: Any, feature: SparseFeature, rows: Rows, counts: Counter[str]) -> Ids:
    """Return ids; nulls become `missing_id`, lists keep their newest `max_length` ids and the rest is counted."""
    missing = np.uint64(feature.missing_id)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_list(column.type):
        values = _uint64(column, missing)
        return Ids(values if rows is None else values[rows], None)
    pieces = [_list_ids(chunk, missing) for chunk in column.chunks]
    values = np.concatenate([piece[0] for piece in pieces]) if pieces else np.empty(0, np.uint64)
    lengths = np.concatenate([piece[1] for piece in pieces]) if pieces else np.empty(0, np.int64)
    offsets = _offsets(lengths)
    chosen = np.arange(lengths.size) if rows is None else rows
    if feature.max_length is not None:
        truncated = int(np.count_nonzero(lengths[chosen] > feature.max_length))
        counts.update({"truncated_sequences": truncated} if truncated else {})
    return take_ids(Ids(values, offsets), chosen, feature.max_length)


def decode_groups(column: Any, name: str, rows: Rows) -> NDArray[np.uint64]:
    """Return integers as they are and strings as the ids they are hashed to; null is 0."""
    plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    values = _uint64(text_ids(name, column) if is_text(plain) else column.cast(plain), np.uint64(0))
    return values if rows is None else values[rows]


def take_ids(ids: Ids, rows: NDArray[np.int64], max_length: int | None = None) -> Ids:
    """Return the ids of some samples of lists, in the order given, at most the last `max_length` of each."""
    assert ids.offsets is not None
    ends = ids.offsets[rows + 1]
    lengths = ends - ids.offsets[rows]
    if max_length is not None:
        lengths = np.minimum(lengths, max_length)
    offsets = _offsets(lengths)
    source = np.repeat(ends - lengths - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ids(ids.values[source], offsets)


def join_ids(parts: list[Ids]) -> Ids:
    """Return the lists of ids of several runs of samples as one."""
    lengths = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    return Ids(np.concatenate([part.values for part in parts]), _offsets(np.concatenate(lengths)))


def _float32(column: Any, rows: Rows) -> NDArray[np.float32]:
    """Return float32 values, NaN for null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values: NDArray[np.float32] = column.cast(pa.float32(), safe=False).to_numpy()
    return values if rows is None else values[rows]


def _uint64(array: Any, missing: np.uint64) -> NDArray[np.uint64]:
    """Return integers as uint64, negative ones reinterpreted (two's complement), `missing` for null."""
    wide = pa.uint64() if pa.types.is_unsigned_integer(array.type) else pa.int64()
    array = array.cast(wide)
    if not array.null_count:
        plain: NDArray[np.uint64] = array.to_numpy(**_copies(array)).view(np.uint64)
        return plain
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(**_copies(array))
    values: NDArray[np.uint64] = array.fill_null(0).to_numpy(**_copies(array)).view(np.uint64)
    return np.where(valid, values, missing)


def _copies(array: Any) -> dict[str, bool]:
    return {} if isinstance(array, pa.ChunkedArray) else {"zero_copy_only": False}


def _list_ids(chunk: Any, missing: np.uint64) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the values and lengths of a list array; a null list becomes one missing id."""
    values = _uint64(chunk.flatten(), missing)
    lengths: NDArray[np.int64] = (
        pc.list_value_length(chunk).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    )
    if not chunk.null_count:
        return values, lengths
    null: NDArray[np.bool_] = chunk.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(null, 1, lengths)
    full = np.empty(int(lengths.sum()), np.uint64)
    is_missing = np.zeros(full.size, np.bool_)
    is_missing[_offsets(lengths)[:-1][null]] = True
    full[is_missing] = missing
    full[~is_missing] = values
    return full, lengths


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _check(
    good: NDArray[np.bool_], values: NDArray[np.float32], rows: Rows, what: str, where: object, remedy: str
) -> None:
    if good.all():
        return
    bad = np.flatnonzero(~good)
    first = int(bad[0]) if rows is None else int(rows[bad[0]])
    value = "null or NaN" if np.isnan(values[bad[0]]) else str(values[bad[0]])
    raise DataError(
        f"{where}: {bad.size} of {good.size} values of {what} are unusable, "
        f"the first is {value} in row {first}; {remedy}"
    )
