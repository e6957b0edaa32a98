"""Planning a job reports wrong weights, null numbers and ids as numbers, where a split has their rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError

EVERY = {"kind": "every", "n": 4}
DAYS = {"kind": "column", "column": "day", "train": "mo", "eval": "tu"}


def dataset(path: Path, values: list[float | None], **changes: Any) -> ParquetDataset:
    """A file of eight rows in groups of four, with `values` as weights and as a dense feature."""
    columns = {"y": [0, 1] * 4, "c": list(range(8)), "day": ["mo", "tu", "we", "we"] * 2}
    pq.write_table(pa.table({**columns, "w": pa.array(values, pa.float64())}), path / "a.parquet", row_group_size=4)
    keys = {"kind": "parquet", "path": str(path), "labels": ["y"], "sparse": ["c"], "split": EVERY}
    return ParquetDataset.model_validate(keys | changes)


@pytest.mark.parametrize("wrong", [-0.5, None])
def test_a_wrong_weight_is_reported_with_its_row(tmp_path: Path, wrong: float | None) -> None:
    values: list[float | None] = [1.0] * 8
    values[5] = wrong
    with pytest.raises(DataError, match=r"a.parquet, row group 1: 1 of 3 values of weight column w .* in row 1; a wei"):
        inspect(dataset(tmp_path, values, weight="w"))
    assert inspect(dataset(tmp_path, [0.0, *values[:5], 1.0, 1.0], weight="w", split=DAYS)).eval_rows == 2


@pytest.mark.parametrize("row", [5, 6])
def test_rows_of_no_split_may_have_any_weight(tmp_path: Path, row: int) -> None:
    values: list[float | None] = [1.0] * 8
    values[row] = -1.0
    data = dataset(tmp_path, values, weight="w", split=DAYS)
    if row == 5:
        with pytest.raises(DataError, match="1 of 1 values of weight column w"):
            inspect(data)
    else:
        assert inspect(data).train_rows == 2


@pytest.mark.parametrize("transform", [None, "log1p", "standardise"])
def test_null_numbers_need_a_fill(tmp_path: Path, transform: str | None) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, None, 7.0, 8.0]
    dense = [{"name": "w", "transform": transform}]
    with pytest.raises(DataError, match=r"row group 1: 1 of 3 values of dense column w .* set dataset.fill"):
        inspect(dataset(tmp_path, values, dense=dense))
    assert inspect(dataset(tmp_path, values, dense=dense, fill=0.0)).dense == 1


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("dense=[{name: workclass, transform: standardise}]", "column workclass .* a dense feature is a number; take"),
        ("sparse=[{name: education, buckets: 5}]", "column education .* but buckets are made of numbers; take it out"),
        ("sparse=[gender, {name: b, column: age_bucket, buckets: 5}]", "column age_bucket holds ids of text"),
        ("weight=education", r"education holds ids of text \(dataset.raw\), but the weight of a sample is a number"),
        ("labels=[{name: gender, at_least: 3}]", "column gender holds ids of text .* but a label is a number"),
    ],
)
def test_ids_of_text_are_no_numbers(word: str, sentence: str) -> None:
    words = ["conf=adult_income", *([] if word.startswith("sparse") else ["dataset.sparse=[race]"]), f"dataset.{word}"]
    with pytest.raises(DataError, match=sentence):
        inspect(compose_run(words).dataset)


def test_an_id_may_be_a_label_by_its_value_and_a_number_a_feature_twice() -> None:
    words = ["dataset.sparse=[race, {name: b, column: age, buckets: 3}]", "dataset.dense=[age]"]
    label = "dataset.labels=[{name: gender, positive: 5}]"
    with pytest.raises(DataError, match="column gender is never 5, but"):
        inspect(compose_run(["conf=adult_income", *words, label]).dataset)


@pytest.mark.parametrize("label", ["w", {"name": "w", "at_least": 0.5}, {"name": "w", "positive": 1}])
def test_a_null_label_is_reported_with_its_row(tmp_path: Path, label: Any) -> None:
    values: list[float | None] = [1.0, 0.0] * 4
    values[5] = None
    with pytest.raises(DataError, match=r"row group 1: 1 of 3 values of label column w .* drop or correct these rows"):
        inspect(dataset(tmp_path, values, labels=[label]))
    assert inspect(dataset(tmp_path, values, labels=[label], split={"kind": "predict"})).eval_rows == 8


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ({"name": "day", "positive": "mon"}, "column day is never mon, but mo, tu, we; correct positive of label day"),
        ({"name": "c", "positive": [8, 9]}, "column c is never 8 or 9, but 0, 1, 2, 3, 4, 5, 6, 7; correct positive"),
    ],
)
def test_a_label_that_is_never_positive_is_reported_with_its_values(
    tmp_path: Path, label: dict[str, Any], told: str
) -> None:
    ones = [1.0] * 8
    with pytest.raises(DataError, match=told):
        inspect(dataset(tmp_path, ones, labels=[label], sparse=[], dense=["w"]))
    there = dataset(
        tmp_path,
        ones,
        labels=[label | {"positive": ["tu", "x"] if label["name"] == "day" else 7}],
        sparse=[],
        dense=["w"],
    )
    assert inspect(there).tasks == 1
