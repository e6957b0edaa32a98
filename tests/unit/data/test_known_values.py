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


@pytest.mark.parametrize(
    ("keys", "wrong", "says"),
    [
        ({"weight": "w"}, -0.5, "weight column w .* in row 1; a wei"),
        ({"weight": "w"}, None, "weight column w .* in row 1; a wei"),
        ({"dense": [{"name": "w", "transform": "log1p"}]}, None, "dense column w .* dataset.fill"),
        ({"labels": ["w"]}, None, "label column w .* drop or correct these rows"),
        ({"labels": [{"name": "w", "positive": 1}]}, None, "label column w .* drop or correct these rows"),
    ],
)
def test_a_wrong_value_of_a_split_is_reported_with_its_row(
    tmp_path: Path, keys: dict[str, Any], wrong: float | None, says: str
) -> None:
    values: list[float | None] = [1.0, 0.0] * 4
    values[5] = wrong
    with pytest.raises(DataError, match=rf"a.parquet, row group 1: values of {says}"):
        inspect(dataset(tmp_path, values, **keys))
    in_no_split = [1.0, 0.0, wrong, *[1.0] * 5]
    assert inspect(dataset(tmp_path, in_no_split, **keys, split=DAYS)).train_rows == 2


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


def test_a_label_that_is_never_positive_is_reported_with_its_values(tmp_path: Path) -> None:
    for name, positive, told in (
        ("day", "mon", "column day is never mon, but mo, tu, we; correct positive of label day"),
        ("c", [8, 9], "column c is never 8 or 9, but 0, 1, 2, 3, 4, 5, 6, 7; correct positive"),
        ("day", ["tu", "x"], None),
    ):
        data = dataset(tmp_path, [1.0] * 8, labels=[{"name": name, "positive": positive}], sparse=[], dense=["w"])
        if told is None:
            assert inspect(data).tasks == 1
            return
        with pytest.raises(DataError, match=told):
            inspect(data)
