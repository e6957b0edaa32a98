"""Transforms of dense values, buckets, and labels made of other values, by statistics of the training rows."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.config.schema.split import PredictSplit
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.read.dense_transforms import bucket_ids, piecewise, transform
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.samples import read

ROWS = 2000
LOGARITHM = {"name": "x", "transform": "log1p"}


def dataset(path: Any, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["x"], "shuffle": False}
    return ParquetDataset.model_validate({**keys, "split": {"kind": "every", "n": 4}, "fill": 9.0, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Numbers with nulls; every fourth row, which evaluates, is far from the others."""
    rng = np.random.default_rng(0)
    row = np.arange(ROWS)
    x = rng.normal(1e6, 1e3, ROWS) + (row % 4 == 0) * 1e9
    y = row % 2
    table = {"y": y, "x": pa.array(x, mask=row % 10 == 1), "sign": 2 * y - 1, "stars": row % 5 + 1,
             "word": np.where(y == 1, "yes", "no")}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=300)
    return tmp_path


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20))
def test_log1p_keeps_order_and_sign(values: list[float]) -> None:
    given_ = np.array(sorted(values))
    got = transform(given_, DenseFeature(name="x", transform="log1p"))
    assert (np.diff(got) >= 0).all()
    np.testing.assert_allclose(got, [np.sign(x) * np.log(1.0 + abs(x)) for x in given_], rtol=1e-9, atol=1e-15)


@given(st.lists(st.floats(-100, 100), max_size=20), st.lists(st.floats(-100, 100), max_size=6, unique=True))
def test_a_bucket_is_the_number_of_boundaries_reached(values: list[float], boundaries: list[float]) -> None:
    boundaries = sorted(boundaries)
    got = bucket_ids(np.array([*values, np.nan]), boundaries, np.uint64(77))
    assert got.tolist() == [*(1 + sum(edge <= value for edge in boundaries) for value in values), 77]


def test_statistics_are_of_training_rows_and_stay_with_the_data_set(folder: Path, tmp_path: Path) -> None:
    features = [{"name": "bucket", "column": "x", "buckets": 4, "missing_id": 7}]
    data = dataset(folder, dense=[{"name": "x", "transform": "standardise"}], sparse=features)
    table = pq.read_table(folder / "a.parquet").to_pandas()
    train = table[np.arange(ROWS) % 4 != 0].x
    settled = inspect(data).settled
    known, bucket = settled.dense_features[0], settled.sparse[0]
    assert known.mean == pytest.approx(train.mean(), rel=1e-12)
    assert known.deviation == pytest.approx(train.std(ddof=0), rel=1e-9)
    batch = read(data, "train")
    there = train.notna().to_numpy()
    np.testing.assert_allclose(batch.dense[there, 0].mean(), 0.0, atol=1e-3)
    np.testing.assert_allclose(batch.dense[there, 0].std(), 1.0, atol=1e-3)
    assert set(batch.dense[~there, 0].tolist()) == {9.0}
    numbers, counts = np.unique(batch.ids, return_counts=True)
    assert numbers.tolist() == [1, 2, 3, 4, 7]
    assert np.ptp(counts[:4]) <= 2
    # Other data is read with the same statistics, though its own differ; as the run's configuration is.
    again = ParquetDataset.model_validate(json.loads(settled.model_dump_json()))
    assert (again.dense, again.sparse) == (settled.dense, settled.sparse)
    pq.write_table(pa.table({"x": [known.mean, known.mean + known.deviation]}), tmp_path / "later.parquet")
    later = again.model_copy(update={"path": str(tmp_path / "later.parquet"), "split": PredictSplit(kind="predict")})
    assert read(later, "eval").dense.ravel().tolist() == [0.0, 1.0]
    assert bucket.buckets == again.sparse[0].buckets


def test_without_training_rows_there_are_no_statistics(folder: Path) -> None:
    data = dataset(folder, dense=[{"name": "x", "transform": "standardise"}], split={"kind": "predict"})
    with pytest.raises(DataError, match="x is transformed by statistics of the training rows, but there are none here"):
        inspect(data)


@pytest.mark.parametrize("value", [0.1, 1e10 + 0.1, None])
def test_a_column_that_is_always_the_same_has_no_statistics(tmp_path: Path, value: float | None) -> None:
    """Its mean may not be a float64, and then no value is the mean."""
    table = pa.table({"y": [0, 1] * 50, "x": pa.array([value] * 100, pa.float64())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    for keys, told in (
        ({"dense": [{"name": "x", "transform": "standardise"}]}, "feature x cannot be standardised: its values are"),
        ({"dense": [{"name": "x", "transform": "piecewise", "bins": 3}]}, "dense feature x cannot have bins"),
        ({"sparse": [{"name": "b", "column": "x", "buckets": 4}]}, "feature b cannot have buckets: its values are"),
    ):
        with pytest.raises(DataError, match=told):
            inspect(dataset(tmp_path, **{"dense": [], **keys}))


def test_numbers_far_from_1_are_scaled_by_the_training_rows(folder: Path) -> None:
    settled = inspect(dataset(folder, dense=["x", "stars"])).settled
    [x, stars] = settled.dense_features
    assert (x.transform, settled.rescale, stars.transform) == ("standardise", False, None)
    assert x.mean == pytest.approx(1e6, abs=200)
    assert inspect(settled).settled == settled, "the choice is kept"
    as_it_is = {"name": "x", "transform": "none"}
    assert inspect(dataset(folder, dense=[as_it_is])).settled.dense_features[0].transform is None
    for transform_, data in ((None, dataset(folder, rescale=False)), ("log1p", dataset(folder, dense=[LOGARITHM]))):
        found = inspect(data).settled
        assert [each.transform for each in found.dense_features] == [transform_]


def test_a_long_tail_is_taken_by_its_logarithm(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    columns = {"y": np.arange(ROWS) % 2, "gain": draw.pareto(1.0, ROWS) * 100, "age": draw.integers(17, 90, ROWS)}
    pq.write_table(pa.table(columns | {"small": draw.normal(0, 3, ROWS)}), tmp_path / "a.parquet")
    settled = inspect(dataset(tmp_path, dense=["gain", "age", "small"])).settled
    assert [each.transform for each in settled.dense_features] == ["log1p", "standardise", None]


@pytest.mark.parametrize(
    "label",
    [
        {"name": "sign", "positive": 1}, {"name": "stars", "at_least": 4}, {"name": "stars", "positive": [4, 5]},
        {"name": "word", "positive": "yes"}, {"name": "sign", "at_least": 0},
    ],
)  # fmt: skip
def test_labels_are_made_of_other_values(folder: Path, label: dict[str, Any]) -> None:
    labels = read(dataset(folder, labels=[label]), "train").labels.ravel()
    row = np.arange(ROWS)[np.arange(ROWS) % 4 != 0]
    assert labels.tolist() == (row % 5 >= 3 if label["name"] == "stars" else row % 2).astype(float).tolist()


def test_labels_that_need_a_rule_are_reported(folder: Path) -> None:
    for labels, remedy in (
        (["word"], r"dataset.labels=\[\{name: word, positive: VAL"),
        (["sign"], r"dataset.labels=\[\{name: sign, positive: 1\}\]"),
        ([{"name": "word", "positive": 1}], "column word holds strings; write the positive value .* in quotes"),
    ):
        with pytest.raises(DataError, match=remedy):
            read(dataset(folder, labels=labels))
    with pytest.raises(ValidationError, match="positive or at_least, not both"):
        dataset(folder, labels=[{"name": "y", "positive": 1, "at_least": 1}])


def test_inspection_proposes_rules_and_transforms(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = {
        "y": rng.choice([-1, 1], ROWS),
        "price": rng.lognormal(5, 3, ROWS),
        "year": rng.normal(2000, 3, ROWS),
        "ctr": rng.random(ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    suggestion = inspect_data(str(tmp_path), lambda done, total: None).suggestion
    values = yaml.safe_load(suggestion)
    assert values["labels"] == [{"name": "y", "positive": 1}]
    assert values["dense"] == [
        {"name": "price", "transform": "log1p"}, {"name": "year", "transform": "standardise"}, "ctr",
    ]  # fmt: skip
    facts = inspect(ParquetDataset.model_validate(values))
    assert (facts.tasks, facts.dense, facts.warnings) == (1, 3, ())


EDGES = st.lists(st.integers(-800, 800).map(lambda eighths: eighths / 8), min_size=2, max_size=6, unique=True)


@given(st.lists(st.floats(-200, 200), min_size=1, max_size=20), EDGES)
def test_bins_are_those_of_the_paper(values: list[float], edges: list[float]) -> None:
    """Equation 1 of arXiv 2203.05556, written down plainly."""
    edges = sorted(edges)
    bins = list(pairwise(edges))
    expected = [
        [
            0.0 if x < low and t > 0 else 1.0 if x >= high and t < len(bins) - 1 else (x - low) / (high - low)
            for t, (low, high) in enumerate(bins)
        ]
        for x in values
    ]
    np.testing.assert_allclose(piecewise(np.array(values), edges), expected, rtol=1e-12)


def test_edges_of_bins_are_of_training_rows_and_stay_with_the_data_set(folder: Path) -> None:
    data = dataset(folder, dense=["sign", {"name": "x", "transform": "piecewise", "bins": 8}, "stars"])
    settled = inspect(data).settled
    table = pq.read_table(folder / "a.parquet").to_pandas()
    train = table[np.arange(ROWS) % 4 != 0].x.dropna()
    edges = settled.dense_features[1].bins
    assert isinstance(edges, tuple)
    assert (edges[0], edges[-1]) == (train.min(), train.max())
    assert np.histogram(train, edges)[0].tolist() == pytest.approx([train.size / 8] * 8, abs=1)
    assert inspect(data).dense == settled.dense_width == 10
    for split, rows in (("eval", table[np.arange(ROWS) % 4 == 0]), ("train", table[np.arange(ROWS) % 4 != 0])):
        found = read(settled, split).dense
        np.testing.assert_array_equal(found, read(data, split).dense)
        np.testing.assert_array_equal(found[:, [0, 9]], rows[["sign", "stars"]].to_numpy(np.float32))
        known = rows.x.notna().to_numpy()
        np.testing.assert_allclose(found[known, 1:9], piecewise(rows.x.to_numpy()[known], edges), rtol=1e-6)
        assert (found[~known, 1:9] == 9.0).all()


def test_bins_of_equal_edges_become_one(tmp_path: Path) -> None:
    table = {"y": [0, 1] * 20, "x": [0.0] * 36 + [1.0, 2.0, 3.0, 4.0]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    settled = inspect(dataset(tmp_path, dense=[{"name": "x", "transform": "piecewise", "bins": 10}])).settled
    assert settled.dense_features[0].bins is not None
    assert 1 <= settled.dense_width < 5


@pytest.mark.parametrize(
    ("values", "buckets", "rows"),
    [
        ([*range(100)], 4, [25, 25, 25, 25]),
        ([0] * 80 + [*range(1, 21)], 4, [80, 20]),
        ([0] * 60 + [1] * 40, 3, [60, 40]),
        ([0] * 40 + [1] * 60, 2, [40, 60]),
        ([0] * 48 + [1] * 24 + [2] * 12 + [3] * 8 + [4] * 8, 3, [48, 24, 28]),
        ([1, 2] + [9] * 98, 3, [2, 98]),
    ],
)
def test_buckets_part_the_rows_as_evenly_as_their_values_can_be(
    values: list[int], buckets: int, rows: list[int], tmp_path: Path
) -> None:
    pq.write_table(pa.table({"y": [0, 1] * 50, "x": values}), tmp_path / "a.parquet", row_group_size=30)
    split = {"kind": "files", "train": ["*"]}
    data = dataset(tmp_path, split=split, sparse=[{"name": "bucket", "column": "x", "buckets": buckets}])
    assert np.bincount(read(data, "train").ids.astype(np.int64)).tolist() == [0, *rows]


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        ({"transform": "piecewise"}, "needs bins"),
        ({"transform": "log1p", "bins": 3}, "needs bins"),
        ({"transform": "piecewise", "bins": [1.0, 1.0]}, "be ascending"),
        ({"transform": "piecewise", "bins": [1.0]}, "at least 2"),
    ],
)
def test_bins_that_cannot_be_are_refused(feature: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DenseFeature.model_validate({"name": "x", **feature})


@pytest.mark.parametrize("lack", ["statistics", "infinite", "float16", "folder"])
def test_numbers_far_from_1_are_scaled_where_footers_do_not_show_them(tmp_path: Path, lack: str) -> None:
    rng = np.random.default_rng(0)
    x, near = rng.normal(3000.0, 1.0, 400), rng.normal(0.0, 1.0, 400)
    if lack == "infinite":
        x[7] = near[7] = math.inf
    kind = pa.float16() if lack == "float16" else pa.float64()
    columns = {"y": np.arange(400) % 2, "x": pa.array(x.astype(kind.to_pandas_dtype())), "near": pa.array(near, kind)}
    for year in (2023, 2024) if lack == "folder" else ():
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table(columns), tmp_path / f"year={year}" / "a.parquet")
    if lack != "folder":
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", write_statistics=lack != "statistics")
    dense = ["year" if lack == "folder" else "x", "near"]
    settled = inspect(dataset(tmp_path, dense=dense, fill=0.0, split={"kind": "every", "n": 4})).settled
    assert [each.transform for each in settled.dense_features] == ["standardise", None]
    assert np.abs(read(settled, "train").dense).max() < 6


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_lists_of_numbers_far_from_1_are_warned_of(tmp_path: Path, scale: float) -> None:
    vectors = pa.array([[scale, -scale], None, [0.0, math.nan]] * 20, pa.list_(pa.float32()))
    pq.write_table(pa.table({"y": [0, 1, 1] * 20, "v": vectors}), tmp_path / "a.parquet", write_statistics=False)
    warnings = inspect(dataset(tmp_path, dense=["v"], split={"kind": "every", "n": 4})).warnings
    assert len(warnings) == (scale > 20)
    assert all(" v;" in each for each in warnings)
