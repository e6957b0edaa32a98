"""Arrow columns to arrays, with checks for values that are missing, out of range or too long."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.features import DenseFeature, Label, SparseFeature
from persia_cli.data.read.arrow_types import UnusableValueError, class_of, is_list, plain_type
from persia_cli.data.read.bad_rows import BadValueError
from persia_cli.data.read.batch import Ids, offsets_of, take_ids
from persia_cli.data.read.dense_transforms import bucket_ids, numbers_of, transform
from persia_cli.data.read.ids import NULL_ID, PADDING_ID, text_id
from persia_cli.data.read.lists import WrongLengthError, split_texts, vectors
from persia_cli.data.read.times import from_format, part_of
from persia_cli.data.read.times import remedy as correct_times
from persia_cli.data.read.values import INTEGER, float_values, id_values
from persia_cli.metric import Link

Rows = NDArray[np.int64] | None
"""Numbers of the rows to take, or None for all."""
CORRECT_NUMBERS = "give a value that replaces them, such as dataset.fill=0, or correct the data"
CORRECT_IDS = "correct the data, or turn the values into categories first"
"""Remedies for values of a data set that cannot be used."""


def decode_labels(
    column: Any, label: Label, where: object, rows: Rows, link: Link = "logistic", optional: bool = False
) -> NDArray[np.float32]:
    """Return labels as float32; raises DataError for one that the label's loss cannot learn.

    A null, or NaN, is NaN if the label is `optional`, and an error otherwise. What predicts it (`link`) decides
    which values there are: a probability takes labels in [0, 1], to which rules of the configuration
    may map others, `exp` takes those that are not negative, and `identity` all finite ones.
    """
    if label.positive is None and label.at_least is None:
        values = _float32(column, rows)
        good, remedy = _is_label(values, label.name, link, optional)
        _check(good, values, rows, f"label column {label.name}", where, remedy)
        return values
    is_text = class_of(column.type) == "text"
    if is_text:
        plain = column.cast(plain_type(column.type)).cast(pa.large_string())
        absent = plain.is_null().to_numpy()
        is_positive = pc.is_in(plain, pa.array([str(value) for value in label.positives], pa.large_string())).to_numpy()
    else:
        absent, is_positive = _by_rule(column, label)
    values = np.where(absent, np.nan, is_positive).astype(np.float32)
    values = values if rows is None else values[rows]
    if not optional:
        remedy = "every row needs a label; drop or correct these rows"
        _check(~np.isnan(values), values, rows, f"label column {label.name}", where, remedy)
    return values


def _by_rule(column: Any, label: Label) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which values of a column of numbers are null or NaN, and which are positive by a label's rule.

    The comparison is exact also where float64 has no such integer: 2^60 + 1 is not 2^60.
    """
    wanted = [value for value in label.positives if isinstance(value, int)]
    values: NDArray[Any]
    least: float | None
    if class_of(column.type) == "integer":
        kind = pa.uint64() if pa.types.is_unsigned_integer(plain_type(column.type)) else pa.int64()
        plain = column.cast(kind)
        absent, values = plain.is_null().to_numpy(), plain.fill_null(0).to_numpy()
        bounds = np.iinfo(values.dtype)
        exact = [value for value in wanted if bounds.min <= value <= bounds.max]
        least = None if label.at_least is None else math.ceil(label.at_least)
    else:
        values = float_values(column)
        absent, exact = np.isnan(values), [value for value in wanted if float(value) == value]
        least = None if label.at_least is None else _float_from(label.at_least)
    if least is None:
        return absent, np.isin(values, np.array(exact, values.dtype))
    return absent, values >= least


def _float_from(number: float) -> float:
    """Return the least float64 that is not below a number."""
    nearest = float(number)
    return nearest if nearest >= number else math.nextafter(nearest, math.inf)


def _is_label(values: NDArray[np.float32], name: str, link: Link, optional: bool) -> tuple[NDArray[np.bool_], str]:
    """Return which values are labels, or nulls if these are allowed, and what to do about the others."""
    allowed = np.isnan(values) if optional else np.zeros(values.shape, np.bool_)
    if link == "identity":
        return np.isfinite(values) | allowed, "a label is a finite number; drop or correct these rows"
    if link == "exp":
        remedy = (
            "the label of a poisson loss is finite and not negative; drop or correct these rows, or take another loss: "
            f"train.losses={{{name}: {{kind: mse}}}}"
        )
        return np.isfinite(values) & (values >= 0.0) | allowed, remedy
    good = (values >= 0.0) & (values <= 1.0) | allowed
    bad = values[~good]
    if np.isnan(bad).all():
        return good, "every row needs a label; drop or correct these rows"
    if (bad < 0.0).all() and (values == 0.0).any():
        # Labels 0 and 1 with a negative number for the rows whose label is not known.
        instead = "write null for it" if optional else "drop these rows"
        return good, f"a label lies between 0 and 1; if {bad.min():g} stands for a label that is not known, {instead}"
    remedy = (
        "a label lies between 0 and 1; correct these rows, or declare which values are positive: "
        f"dataset.labels=[{{name: {name}, positive: 1}}] or {{name: {name}, at_least: 4}}; to predict numbers, declare "
        f"a loss for them: train.losses={{{name}: {{kind: mse}}}}"
    )
    return good, remedy


def decode_weights(column: Any, name: str, where: object, rows: Rows) -> NDArray[np.float32]:
    """Return sample weights as float32; raises DataError for one that is null, not finite or negative."""
    values = _float32(column, rows)
    remedy = "a weight is finite and not negative; drop or correct these rows"
    _check(np.isfinite(values) & (values >= 0.0), values, rows, f"weight column {name}", where, remedy)
    return values


def decode_dense(
    column: Any,
    feature: DenseFeature,
    where: object,
    rows: Rows,
    fill: float | None,
    counts: Counter[str],
    remedy: str = CORRECT_NUMBERS,
) -> NDArray[np.float32]:
    """Return dense values, transformed, [n, feature.inputs]; `counts` counts the fills.

    `fill` takes the place of all inputs of a null or non-finite value; without it, such a value raises DataError with
    `remedy`; so does a list of another length than `feature.width`.
    """
    name = feature.name
    if feature.width is not None:
        values = _vectors(column, feature, where, rows)
    else:
        values = _transformed(column, feature, where, rows).reshape(-1, feature.inputs)
    good: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(values), axis=1)
    if fill is None:
        _check(good, values.sum(axis=1), rows, f"dense column {name}", where, remedy)
    elif not good.all():
        counts["filled_dense_values"] += int(good.size - np.count_nonzero(good))
        values = np.where(good[:, None], values, np.float32(fill))
    return values


def decode_ids(
    column: Any,
    feature: SparseFeature,
    as_lists: bool,
    where: object,
    rows: Rows,
    counts: Counter[str],
    remedy: str = CORRECT_IDS,
) -> Ids:
    """Return ids; nulls become `missing_id`, and of a list the newest `max_length` ids are kept, the others counted.

    `as_lists` is True if the feature holds lists, for columns that hold only nulls; so does a feature that drops nulls.
    Raises DataError naming the row of a value that cannot be an id, with `remedy`.
    """
    if feature.separator is not None:
        column = split_texts(column, feature.separator)
    if not is_list(plain_type(column.type)):
        try:
            single = _flat_ids(column, feature)
        except UnusableValueError as bad:
            raise _no_id(bad, feature, where, bad.indices, remedy) from bad
        single = single if rows is None else single[rows]
        if feature.padding is not None or feature.drops_nulls:
            return _without_dropped(Ids(single, np.arange(single.size + 1)), column, feature)
        return Ids(single, np.arange(single.size + 1) if as_lists else None)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    pieces: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
    for chunk in column.chunks:
        try:
            pieces.append(_list_ids(chunk, feature))
        except UnusableValueError as bad:
            before = sum(lengths.size for _, lengths in pieces)
            raise _no_id(bad, feature, where, before + _rows_of(chunk, bad.indices), remedy) from bad
    values = np.concatenate([piece[0] for piece in pieces]) if pieces else np.empty(0, np.uint64)
    lengths = np.concatenate([piece[1] for piece in pieces]) if pieces else np.empty(0, np.int64)
    ids = _without_dropped(Ids(values, offsets_of(lengths)), column, feature)
    assert ids.offsets is not None
    lengths = np.diff(ids.offsets)
    chosen = np.arange(lengths.size) if rows is None else rows
    if feature.max_length is not None:
        truncated = int(np.count_nonzero(lengths[chosen] > feature.max_length))
        counts.update({"truncated_sequences": truncated} if truncated else {})
    return take_ids(ids, chosen, feature.max_length)


def decode_query_ids(column: Any, name: str, where: object, rows: Rows) -> NDArray[np.uint64]:
    """Return query ids: integers unchanged, strings as hashed ids, null as `NULL_ID`, which is no query.

    Raises DataError naming the row of a value that cannot be an id.
    """
    try:
        values = id_values(column, name, None, np.uint64(NULL_ID))
    except UnusableValueError as bad:
        text = f"{where}: {bad} in {place_in(where, bad.index)} of dataset.group_by, column {name}"
        raise BadValueError(text, bad.indices) from bad
    return values if rows is None else values[rows]


def _flat_ids(array: Any, feature: SparseFeature) -> NDArray[np.uint64]:
    """Return an id for each value of an array without lists; that of a null is `NULL_ID` if it is to be dropped."""
    array, missing = from_format(array, feature.format), _null_id(feature)
    if feature.buckets is not None:
        assert isinstance(feature.buckets, tuple)
        return bucket_ids(numbers_of(array, feature), feature.buckets, missing)
    if _pads_integers_by_text(array.type, feature):
        texts = array.cast(plain_type(array.type)).cast(pa.large_string())
        is_padding = pc.fill_null(pc.equal(texts, feature.padding), False)
        ids = id_values(pc.if_else(is_padding, None, texts), feature.table_name, feature.ids, missing)
        return np.where(np.asarray(is_padding), np.uint64(PADDING_ID), ids)
    if feature.transform is None:
        return id_values(array, feature.table_name, feature.ids, missing)
    times = id_values(array, feature.table_name, "time", np.uint64(NULL_ID))
    parts = part_of(times.view(np.int64), feature.transform).view(np.uint64)
    return np.where(times == np.uint64(NULL_ID), missing, parts)


def _pads_integers_by_text(kind: Any, feature: SparseFeature) -> bool:
    """Return True if texts hold integers, and a padding that is none, such as NA."""
    padding = feature.padding
    is_text = isinstance(padding, str) and not INTEGER.match(padding)
    return is_text and feature.ids == "integer" and class_of(kind) == "text"


def _null_id(feature: SparseFeature) -> np.uint64:
    given = feature.missing_id
    return np.uint64(given % 2**64 if isinstance(given, int) else NULL_ID)


def _without_dropped(ids: Ids, column: Any, feature: SparseFeature) -> Ids:
    """Return lists of ids without padding, and without nulls that have no id."""
    if feature.padding is not None:
        ids = _without(ids, _padding_id(column, feature))
    return _without(ids, np.uint64(NULL_ID)) if feature.drops_nulls else ids


def _without(ids: Ids, dropped: np.uint64 | None) -> Ids:
    """Return lists of ids without one of them."""
    assert ids.offsets is not None
    kept = ids.values != dropped if dropped is not None else np.ones(ids.values.size, np.bool_)
    return Ids(ids.values[kept], np.concatenate([[0], np.cumsum(kept)])[ids.offsets])


def _padding_id(column: Any, feature: SparseFeature) -> np.uint64 | None:
    """Return the id that the padding of a feature has in its column; None if it can have none there."""
    assert feature.padding is not None
    kind = plain_type(column.type)
    element = kind.value_type if is_list(kind) else kind
    if _pads_integers_by_text(element, feature):
        return np.uint64(PADDING_ID)
    is_text = class_of(element) == "text"
    if feature.ids == "text" or (feature.ids is None and is_text):
        return np.uint64(text_id(feature.table_name, str(feature.padding)))
    if feature.ids == "time":
        padding = from_format(pa.array([str(feature.padding)]), feature.format)
        return np.uint64(id_values(padding, "", "time", np.uint64(NULL_ID))[0])
    try:
        return np.uint64(int(feature.padding) % 2**64)
    except ValueError:
        return None


def _transformed(column: Any, feature: DenseFeature, where: object, rows: Rows) -> NDArray[np.float32]:
    try:
        numbers = numbers_of(column, feature)
    except UnusableValueError as bad:
        position = place_in(where, bad.index)
        text = f"{where}: {bad} in {position} of dense column {feature.name}; {correct_times(feature.format)}"
        raise BadValueError(text, bad.indices) from bad
    with np.errstate(over="ignore", invalid="ignore"):
        values = transform(numbers, feature).astype(np.float32)
    return values if rows is None else values[rows]


def _vectors(column: Any, feature: DenseFeature, where: object, rows: Rows) -> NDArray[np.float32]:
    assert feature.width is not None
    try:
        with np.errstate(over="ignore"):
            values = vectors(column, feature.width).astype(np.float32)
    except WrongLengthError as wrong:
        text = (
            f"{where}: {wrong} in {place_in(where, int(wrong.rows[0]))} of dense column {feature.name}, whose lists "
            f"need {feature.width} each; correct the data, or write null for a missing list and set dataset.fill"
        )
        raise BadValueError(text, wrong.rows) from wrong
    return values if rows is None else values[rows]


def _float32(column: Any, rows: Rows) -> NDArray[np.float32]:
    """Return float32 values: NaN for null, infinity for values beyond the range of float32."""
    with np.errstate(over="ignore"):
        values = float_values(column).astype(np.float32)
    return values if rows is None else values[rows]


def _list_ids(chunk: Any, feature: SparseFeature) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the values and lengths of a list array; a null list becomes one missing id."""
    values = _flat_ids(chunk.flatten(), feature)
    lengths = _lengths(chunk)
    if not chunk.null_count:
        return values, lengths
    null: NDArray[np.bool_] = chunk.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(null, 1, lengths)
    full = np.empty(int(lengths.sum()), np.uint64)
    is_missing = np.zeros(full.size, np.bool_)
    is_missing[offsets_of(lengths)[:-1][null]] = True
    full[is_missing] = _null_id(feature)
    full[~is_missing] = values
    return full, lengths


def _lengths(chunk: Any) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = (
        pc.list_value_length(chunk).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    )
    return lengths


def _rows_of(chunk: Any, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of a list array that hold its values of these numbers."""
    return np.searchsorted(np.cumsum(_lengths(chunk)), values, side="right")


def place_in(where: object, row: int) -> str:
    """Return the position of a row, for people."""
    place_of = getattr(where, "place_of", None)
    return f"row {row} (from 0)" if place_of is None else str(place_of(row))


def _no_id(
    bad: UnusableValueError, feature: SparseFeature, where: object, rows: NDArray[np.int64], remedy: str
) -> BadValueError:
    position = place_in(where, int(rows[0]))
    remedy = correct_times(feature.format) if feature.ids == "time" and remedy == CORRECT_IDS else remedy
    text = (
        f"{where}: {bad} in {position} of column {feature.column_name}, so sparse feature {feature.name} has no id "
        f"there; {remedy}"
    )
    return BadValueError(text, rows)


def _check(
    good: NDArray[np.bool_], values: NDArray[np.float32], rows: Rows, what: str, where: object, remedy: str
) -> None:
    if good.all():
        return
    wrong = np.flatnonzero(~good)
    value = "null or NaN" if np.isnan(values[wrong[0]]) else str(values[wrong[0]])
    bad = wrong if rows is None else rows[wrong]
    position = place_in(where, int(bad[0]))
    raise BadValueError(f"{where}: values of {what} are unusable, the first is {value} in {position}; {remedy}", bad)
