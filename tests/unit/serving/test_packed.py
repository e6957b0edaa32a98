"""Columns as bytes in a body become the batch of the same columns one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.errors import DataError
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.packed import PackedColumn, PackedColumns, PackedLayout

FIELDS = RequestFields(
    dense=tuple(DenseFeature(name=name) for name in ("price", "age", "weight")),
    sparse=(
        SparseFeature(name="user", ids="integer"),
        SparseFeature(name="item", ids="integer"),
        SparseFeature(name="again", column="item", ids="integer", table="other"),
        SparseFeature(name="shop", ids="integer"),
    ),
)
SINGLE, IDS = np.dtype(np.float32), (np.dtype(np.int64), np.dtype(np.uint64))


def packed(columns: dict[str, NDArray[Any]], before: bytes = b"{}") -> PackedColumns:
    """The columns, concatenated."""
    body, parts = before, []
    for name, values in columns.items():
        parts.append(PackedColumn(name, values.dtype, values.size, len(body)))
        body += values.tobytes()
    return PackedColumns(body, PackedLayout(parts))


def one_by_one(fields: RequestFields, columns: PackedColumns) -> Any:
    """The batch of the same columns as separate arrays."""
    return fields.batch(dict(columns))


def require_same(fields: RequestFields, columns: PackedColumns) -> None:
    made, expected = fields.batch(columns), one_by_one(fields, columns)
    for name in ("dense", "labels", "ids", "offsets"):
        mine, theirs = getattr(made, name), getattr(expected, name)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.tobytes() == theirs.tobytes()
        assert (mine.flags.aligned, mine.flags.c_contiguous) == (True, True)
    assert (made.features, made.weights, made.query_ids) == (expected.features, None, None)


@given(st.data())
def test_a_body_gives_the_batch_of_its_columns(data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, 5))
    columns = {}
    for name in data.draw(st.permutations(list(FIELDS.names))):
        size = data.draw(st.sampled_from([1, samples]))
        if name in ("price", "age", "weight"):
            values = data.draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=size,
                                        max_size=size))  # fmt: skip
            columns[name] = np.array(values, SINGLE)
        else:
            numbers = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=size, max_size=size))
            columns[name] = np.array(numbers, np.uint64).view(data.draw(st.sampled_from(IDS)))
    before = b"x" * data.draw(st.integers(0, 9))
    made = packed(columns, before)
    assert FIELDS._packed_batch(made) is not None
    require_same(FIELDS, made)


COLUMNS = {
    "user": np.array([7], np.uint64),
    "item": np.array([1, 2**63], np.uint64),
    "shop": np.array([5, -6], np.int64),
    "price": np.array([0.5, 2.5], SINGLE),
    "age": np.array([-1.5, 0.25], SINGLE),
    "weight": np.array([9.0], SINGLE),
}


def test_numbers_that_are_not_finite_are_filled_or_named() -> None:
    filled = FIELDS.model_copy(update={"fill": 4.5})
    for value in (np.nan, np.inf, -np.inf):
        columns = packed(COLUMNS | {"age": np.array([1.5, value], SINGLE)})
        require_same(filled, columns)
        assert filled.batch(columns).dense[1].tolist() == [2.5, 4.5, 9.0]
        # A trainer's remedy is of no use to a client.
        with pytest.raises(DataError, match=r"values of dense .* age .*; the model needs a number there$"):
            FIELDS.batch(columns)
        assert FIELDS.batch(packed(COLUMNS)).dense.tolist() == [[0.5, -1.5, 9.0], [2.5, 0.25, 9.0]]


@pytest.mark.parametrize(
    "change",
    [{"price": np.array([0.1, 0.2], np.float64)}, {"shop": np.array([3, 4], np.int32)}, {"age": np.array([1, 2])}],
)
def test_columns_of_other_types_are_decoded(change: dict[str, Any]) -> None:
    require_same(FIELDS, packed(COLUMNS | change))


def test_fields_that_have_another_form_in_the_data_are_decoded() -> None:
    bins = FIELDS.model_copy(update={"dense": (DenseFeature(name="price", transform="log1p"), *FIELDS.dense[1:])})
    require_same(bins, packed(COLUMNS))
