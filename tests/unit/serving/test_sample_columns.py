"""Requests become columns which, read as a data set is read, give the batch that was predicted."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.decode import decode_dense, decode_ids
from persia_cli.serving.fields import Lists, RequestFields
from persia_cli.serving.sample_columns import SampleColumns

LARGE = 2**63 + 5
FIELDS = RequestFields(
    fill=0.5,
    dense=(DenseFeature(name="price"), DenseFeature(name="age", transform="log1p"), DenseFeature(name="made")),
    sparse=(
        SparseFeature(name="user", ids="integer", missing_id=7),
        SparseFeature(name="place", column="where"),
        SparseFeature(name="word", ids="text"),
        SparseFeature(name="words", ids="text"),
        SparseFeature(name="seen", ids="integer", pooling="none", max_length=2),
        SparseFeature(name="wide", buckets=(1.0, 10.0)),
        SparseFeature(name="hashed", ids="integer"),
        SparseFeature(name="kinds", ids="integer"),
    ),
    lists=("words", "seen", "kinds"),
    raw=(
        RawColumns(columns=("made",), field="raw_age", read="integer", missing=3, steps=("log1p",)),
        RawColumns(columns=("hashed",), field="city", read="text"),
        RawColumns(columns=("kinds",), field="genres", read="texts", separator="|"),
    ),
)
ARRAYS = {
    "user": np.array([1, LARGE, 3], np.uint64),
    "where": np.array([-4, 5, 6], np.int64),
    "word": ["lamp", "", None],
    "words": Lists(["lamp", "sofa", "bed"], np.array([1, 0, 2])),
    "seen": Lists(np.array([1, 2, 3, 4], np.uint64), np.array([3, 0, 1])),
    "wide": np.array([0.5, 2.0, 100.0], np.float32),
    "price": np.array([0.1, np.nan, -3.7], np.float32),
    "age": np.array([1.5, 20.0, 3.0], np.float32),
    "raw_age": [39, None, 7],
    "city": ["Rome", "Oslo", None],
    "genres": [["drama", "crime"], [], ["crime"]],
}
ROWS = {
    "user": ["1", str(LARGE), None],
    "where": [-4, 5, None],
    "word": [12, 13, 14],
    "words": [["lamp"], None, ["sofa", "bed"]],
    "seen": [["1", "2", str(LARGE)], [], None],
    "wide": [1, 2, None],
    "price": [0.1, None, 5],
    "age": [1, 20, 3],
    "raw_age": [39, None, 7],
    "city": ["Rome", "Oslo", None],
    "genres": [["drama", "crime"], [], ["crime"]],
}
ONE = {**ROWS, "user": [str(LARGE)], "word": ["lamp"], "words": [["sofa", "bed"]], "age": [4.5], "city": ["Rome"]}
NULLS = {**ROWS, "word": [None] * 3, "words": [None] * 3, "user": [None] * 3, "price": [None] * 3, "seen": [None] * 3}


@pytest.mark.parametrize("given", [ARRAYS, ROWS, ONE, NULLS], ids=["arrays", "rows", "one for all", "nulls"])
def test_columns_are_read_as_the_batch_that_was_predicted(given: Any) -> None:
    made = SampleColumns(FIELDS)
    table = pa.Table.from_arrays(made.arrays(given, 3), schema=made.schema())
    table.validate(full=True)
    batch = FIELDS.batch(given)
    for number, feature in enumerate(FIELDS.sparse):
        column = table.column(feature.column_name)
        ids = decode_ids(column, feature, feature.name in FIELDS.lists, "the log", None, Counter())
        bounds = batch.offsets[3 * number : 3 * number + 4].astype(np.int64)
        np.testing.assert_array_equal(ids.values, batch.ids[bounds[0] : bounds[-1]], feature.name)
        offsets = np.arange(4) if ids.offsets is None else ids.offsets
        np.testing.assert_array_equal(offsets, bounds - bounds[0], feature.name)
    for number, feature in enumerate(FIELDS.dense):
        values = decode_dense(table.column(feature.name), feature, "the log", None, FIELDS.fill, Counter())
        assert values.reshape(-1).tobytes() == np.ascontiguousarray(batch.dense[:, number]).tobytes(), feature.name


def test_texts_and_numbers_are_kept_as_they_were_given() -> None:
    made = SampleColumns(FIELDS)
    table = pa.Table.from_arrays(made.arrays(ARRAYS, 3), schema=made.schema())
    assert table.column("word").to_pylist() == ["lamp", "", None]
    assert table.column("words").to_pylist() == [["lamp"], [], ["sofa", "bed"]]
    assert table.column("seen").to_pylist() == [[1, 2, 3], [], [4]]
    assert table.column("age").to_pylist() == [1.5, 20.0, 3.0]
    assert table.column("user").to_pylist() == [1, LARGE, 3]
