"""Fields of requests become the values of preparation and reading of training data, to the bit."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from persia_cli.config.compose import compose_run
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.data.prepare.recipe import load_recipe
from persia_cli.data.read.ids import NULL_ID, text_id
from persia_cli.data.read.source import open_source
from persia_cli.errors import CheckpointError, DataError
from persia_cli.serving.columns import Lists, columns_of
from persia_cli.serving.fields import RequestFields, read_fields, write_fields
from persia_cli.shipped import shipped

DATASET: dict[str, Any] = {"kind": "parquet", "path": "nowhere", "labels": ["y"], "split": {"kind": "every", "n": 2}}


def fields_of(lists: tuple[str, ...] = (), **keys: Any) -> RequestFields:
    """The fields of a data set."""
    return RequestFields.of(ParquetDataset.model_validate(DATASET | keys), frozenset(lists))


def test_the_census_by_declarations_is_that_of_the_shipped_file() -> None:
    """Rows as in their README, and the samples that training reads."""
    run = compose_run(["conf=adult_income", "dataset.shuffle=false"])
    source = open_source(run.dataset, "eval", 0)
    expected = source.read(0, 0, 2)
    source.close()
    rows = [
        (25, "Private", "11th", 7, "Never-married", "Machine-op-inspct", "Own-child", "Black", "Male", 0, 0, 40),
        (38, "Private", "HS-grad", 9, "Married-civ-spouse", "Farming-fishing", "Husband", "White", "Male", 0, 0, 50),
    ]
    names = ["age", "workclass", "education", "education_num", "marital_status", "occupation", "relationship", "race"]
    names += ["gender", "capital_gain", "capital_loss", "hours_per_week"]
    fields = RequestFields.of(run.dataset, frozenset())
    given = columns_of(
        [dict(zip(names, row, strict=True)) | {"native_country": "United-States"} for row in rows], fields.names
    )
    batch = fields.batch(given)
    np.testing.assert_array_equal(batch.dense, expected.dense)
    np.testing.assert_array_equal(batch.ids, expected.ids)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("adult_income", "adult_income"), ("criteo", "criteo"), ("criteo_1tb", "criteo_1tb"),
        ("criteo_x4", "criteo_x4"), ("avazu", "avazu"), ("avazu_x4", "avazu"), ("taobao", "taobao"),
        ("taobao_pooled", "taobao"),
        ("movielens_100k", "u.data"), ("movielens_1m", "ratings.dat"), ("movielens_25m", "ratings.csv"),
    ],
)  # fmt: skip
def test_configurations_declare_what_their_recipes_do(name: str, recipe: str) -> None:
    file = yaml.safe_load((shipped("conf") / "dataset" / f"{name}.yaml").read_text())
    declared = ParquetDataset.model_validate(DATASET | {"sparse": ["x"], "raw": file["raw"]}).raw
    if "." in recipe:  # a release of MovieLens, by its file
        load_recipe("movielens")
        assert declared == sys.modules["persia_recipe_movielens"].RELEASES[recipe].raw
        return
    load_recipe(recipe)
    found = sys.modules[f"persia_recipe_{recipe}"]
    assert declared == (found.DATASET["raw"] if hasattr(found, "DATASET") else found.RAW)


def test_ids_come_as_numbers_digits_texts_and_lists() -> None:
    fields = fields_of(
        ("tags",),
        dense=[DenseFeature(name="price", transform="log1p")],
        sparse=[
            SparseFeature(name="user", ids="integer"),
            SparseFeature(name="item", ids="text"),
            SparseFeature(name="tags", table="item", ids="text", pooling="mean", max_length=2),
            SparseFeature(name="age", buckets=(10.0, 20.0)),
        ],
    )
    users, texts = ["18446744073709551615", "7"], pa.array(["lamp", "desk"])
    prices, tags = np.array([1.0, -1.0], np.float32), Lists(["a", "b", "c"], np.array([3, 0]))
    plain = {"user": np.array([2**64 - 1, 7], np.uint64), "item": ["lamp", "desk"], "tags": [["a", "b", "c"], []],
             "price": prices, "age": [15.0, None]}  # fmt: skip
    other = {"user": users, "item": texts, "tags": tags, "price": [1, -1], "age": pa.chunked_array([[15.0], [None]])}
    hashed = [text_id("item", text) for text in ("lamp", "desk", "b", "c")]
    for given in (plain, other):
        batch = fields.batch(given)
        assert batch.ids.tolist() == [2**64 - 1, 7, *hashed, 2, NULL_ID]
        assert batch.offsets.tolist() == [0, 1, 2, 3, 4, 6, 6, 7, 8]
        np.testing.assert_array_equal(batch.dense, np.log1p(np.ones((2, 1))).astype(np.float32) * [[1], [-1]])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"user": None}, "has no field user; the model reads user, d"),
        ({"other": [1]}, "has a field other, which the model does not read"),
        ({"user": [1, 2, 3]}, r"has 2 values of d, and 3 of other fields"),
        ({"user": [1.5, 2.0]}, "1.5 is not a whole number in sample 0 \\(the first is 0\\) of column user"),
        ({"user": ["x", "2"]}, "'x' is not an integer in sample 0"),
        ({"user": [1, "x"]}, "the values of field user do not fit together"),
        ({"user": [{}, {}]}, "field user has values that are no ids"),
        ({"d": [None, 1.0]}, "dense column d are unusable"),
        ({"d": ["a", "b"]}, "field d has values that are no numbers"),
        ({"user": [], "d": []}, None),
        ({"user": "lamp"}, "field user has to be a list .* is str"),
        ({"user": {1, 2}}, "field user has to be a list .* is set"),
        ({"user": 12}, "field user has to be a list .* is int"),
        ({"d": np.ones((2, 2), np.float32)}, "field d has to be a list .* is an array of 2 dimensions"),
        ({"user": Lists([1, 2], np.array([3, -1]))}, "lengths of field user have to be integers from 0 on"),
        ({"user": Lists([1, 2, 3], np.array([1, 1]))}, "lengths of field user add up to 2, and it has 3 ids"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_by_name(change: dict[str, Any], says: str | None) -> None:
    fields = fields_of(dense=["d"], sparse=[{"name": "user", "ids": "integer"}])
    given = {"user": [1, 2], "d": [0.5, 1.5]} | change
    columns = {name: values for name, values in given.items() if values is not None}
    if says is None:
        assert fields.batch(columns).size == 0
        return
    with pytest.raises(DataError, match=says) as refused:
        fields.batch(columns)
    assert "\n" not in str(refused.value)


def test_they_are_written_and_read_as_they_are(tmp_path: Path) -> None:
    fields = fields_of(dense=["d"], sparse=[{"name": "item", "ids": "text"}], fill=0.0)
    write_fields(tmp_path, fields)
    assert read_fields(tmp_path) == fields
    (tmp_path / "features.yaml").write_text("version: 7")
    with pytest.raises(CheckpointError, match=r"features\.yaml cannot be used"):
        read_fields(tmp_path)


def test_numbers_on_a_bound_are_as_in_the_data() -> None:
    """0.7 is below itself as float32, and 0.3 above: the bounds are values of the data."""
    keys: dict[str, Any] = {
        "dense": [DenseFeature(name="d"), DenseFeature(name="p", transform="piecewise", bins=(0.0, 0.7, 1.0))],
        "sparse": [SparseFeature(name="b", buckets=(0.3, 0.7))],
    }
    dataset = ParquetDataset.model_validate(DATASET | keys)
    given = {"d": [0.7, 0.3], "p": [0.7, 0.3], "b": [0.7, 0.3]}
    doubles = RequestFields.of(dataset, frozenset())
    assert [kind for _, kind, _ in doubles.inputs()] == ["FP64", "FP32", "FP64"]
    assert doubles.batch(given).ids.tolist() == [3, 2]
    single = float(np.float32(0.3))
    rounded = ParquetDataset.model_validate(
        DATASET | keys | {"sparse": [SparseFeature(name="b", buckets=(single, 0.7))]}
    )
    singles = RequestFields.of(rounded, frozenset(), frozenset(["d", "p", "b"]))
    assert {name: kind for name, kind, _ in singles.inputs()} == {"p": "FP64", "b": "FP64", "d": "FP32"}
    expected = singles.batch({name: np.array(values, np.float32) for name, values in given.items()})
    assert expected.ids.tolist() == [2, 2]
    for values in (given, {name: np.array(each) for name, each in given.items()}):
        found = singles.batch(values)
        assert found.ids.tolist() == expected.ids.tolist()
        np.testing.assert_array_equal(found.dense.view(np.uint32), expected.dense.view(np.uint32))
    with pytest.raises(DataError, match="dense column p are unusable"):
        singles.batch(given | {"p": [None, 1.0]})
