"""Requests become columns; a data set of them has the batch that was predicted."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.decode import decode_dense, decode_ids
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.serving.columns import Lists
from persia_cli.serving.fields import RequestFields
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
        SparseFeature(name="tags", ids="text", separator="|"),
    ),
    lists=("words", "seen", "kinds", "tags"),
    raw=(
        RawColumns(columns=("made",), field="raw_age", read="integer", missing=3, steps=("log1p",)),
        RawColumns(columns=("hashed",), field="city", read="text"),
        RawColumns(columns=("kinds",), field="genres", read="texts", separator="|"),
    ),
)
ARRAYS = {
    "user": np.array([1, LARGE, 3], np.uint64),
    "where": np.array([-4, 5, NULL_ID], np.int64),
    "word": ["lamp", "", None],
    "words": Lists(["lamp", "sofa", "bed"], np.array([1, 0, 2])),
    "seen": Lists(np.array([1, 2, 3, 4], np.uint64), np.array([3, 0, 1])),
    "wide": np.array([0.5, 2.0, 100.0], np.float32),
    "price": np.array([0.1, np.nan, -3.7], np.float32),
    "age": np.array([1.5, 20.0, 3.0], np.float32),
    "raw_age": [39, None, 7],
    "city": ["Rome", "Oslo", None],
    "genres": [["drama", "crime"], [], ["crime"]],
    "tags": Lists(["red|new", " old "], np.array([1, 0, 1])),
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
    "tags": ["red|new", None, " old "],
}
ONE = {**ROWS, "user": [str(LARGE)], "word": ["lamp"], "words": [["sofa", "bed"]], "age": [4.5], "city": ["Rome"]}


@pytest.mark.parametrize("given", [ARRAYS, ROWS, ONE], ids=["arrays", "rows", "one for all"])
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


def test_texts_numbers_and_nulls_are_logged_unchanged() -> None:
    made = SampleColumns(FIELDS)
    table = pa.Table.from_arrays(made.arrays(ROWS, 3), schema=made.schema())
    logged = {"words": ROWS["words"], "seen": [[1, 2, LARGE], [], None], "age": [1.0, 20.0, 3.0],
              "user": [1, LARGE, None], "price": [0.1, None, 5.0]}  # fmt: skip
    assert {name: table.column(name).to_pylist() for name in logged} == logged


A_TEXT, A_WHOLE = {"name": "text", "column": "a", "ids": "text"}, {"name": "whole", "column": "a", "ids": "integer"}
OTHER = {"name": "other", "column": "a", "ids": "integer", "missing_id": 9}
ANY, STEPS = {"name": "any", "column": "a", "missing_id": 5}, {"name": "steps", "column": "a", "buckets": [-5.0, 0.0]}
DENSE = {"dense": ["a"], "fill": 40.0, "rescale": False}


@pytest.mark.parametrize(
    ("declared", "given", "logged"),
    [
        ({**DENSE, "sparse": [A_WHOLE, OTHER, STEPS]}, ["30", None, "-1"], [30, None, -1]),
        ({**DENSE, "sparse": [A_WHOLE, A_TEXT]}, [2**53 + 1, None, -(2**62) - 1], [2**53 + 1, None, -(2**62) - 1]),
        ({**DENSE, "sparse": [STEPS]}, [0.1, None, -7.5], [0.1, None, -7.5]),
        ({"sparse": [A_WHOLE, OTHER]}, [str(LARGE), None, "-1"], [LARGE, None, 2**64 - 1]),
        ({"sparse": [A_WHOLE, OTHER]}, [[1, 2], None, [-3, None]], [[1, 2], None, [2**64 - 3, None]]),
        ({"sparse": [ANY, A_WHOLE]}, [1, None, -1], [1, None, 2**64 - 1]),
        ({"sparse": [STEPS, A_WHOLE]}, [1, None, -1], [1, None, -1]),
        ({"sparse": [A_WHOLE, A_TEXT]}, [1, None, -1], ["1", None, "-1"]),
        ({"sparse": [A_TEXT, OTHER]}, [["007"], None, ["1", None]], [["007"], None, ["1", None]]),
    ],
)
def test_a_shared_column_has_the_same_values_for_each_feature(
    declared: dict[str, Any], given: Any, logged: list[Any], tmp_path: Path
) -> None:
    split = {"kind": "files", "train": ["train.parquet"], "eval": ["eval.parquet"]}
    whole = {"kind": "parquet", "path": str(tmp_path), "labels": ["y"], "shuffle": False, "split": split}
    lists = frozenset(each["name"] for each in declared["sparse"] if isinstance(given[0], list))
    dataset = ParquetDataset.model_validate(whole | declared)
    fields = RequestFields.of(dataset, lists)
    asked, made = fields.batch({"a": given}), SampleColumns(fields)
    table = pa.Table.from_arrays(made.arrays({"a": given}, 3), schema=made.schema())
    assert table.column("a").to_pylist() == logged
    for name in ("train", "eval"):
        pq.write_table(table.append_column("y", pa.array([0.0] * 3)), tmp_path / f"{name}.parquet")
    source = open_source(dataset, "eval", 0)
    again = source.read(0, 0, 3)
    source.close()
    assert again.dense.tobytes() == asked.dense.tobytes()
    np.testing.assert_array_equal(again.ids, asked.ids)
    np.testing.assert_array_equal(again.offsets, asked.offsets)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        ({**DENSE, "sparse": [A_WHOLE]}, [LARGE]),
        ({**DENSE, "sparse": [A_TEXT]}, ["007"]),
        ({**DENSE, "sparse": [A_TEXT]}, ["x"]),
        ({"sparse": [A_TEXT, A_WHOLE]}, [True]),
    ],
)
def test_values_that_would_be_read_as_others_are_refused(declared: dict[str, Any], given: list[Any]) -> None:
    split = {"kind": "every", "n": 2}
    whole = {"kind": "parquet", "path": "x", "labels": ["y"], "split": split}
    made = SampleColumns(RequestFields.of(ParquetDataset.model_validate(whole | declared), frozenset()))
    with pytest.raises(DataError, match="the request"):
        made.arrays({"a": given}, 1)
