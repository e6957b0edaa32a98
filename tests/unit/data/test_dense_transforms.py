"""Transforms of dense values, buckets, and labels made of other values, by statistics of the training rows."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from persia_cli.config.compose import compose_run
from persia_cli.config.record import write_run
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.features import DenseFeature
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.read.batch import Batch
from persia_cli.data.read.dense_transforms import bucket_ids, piecewise, transform
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from tests.support.runs import make_run

ROWS = 2000


def dataset(path: Any, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["x"], "shuffle": False}
    return ParquetDataset.model_validate({**keys, "split": {"kind": "every", "n": 4}, "fill": 9.0, **changes})


def read(data: ParquetDataset, split: Any) -> Batch:
    source = open_source(data, split, 0)
    try:
        return source.read(0, 0, source.rows)
    finally:
        source.close()


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
    assert settled is not None
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
    later = again.model_copy(update={"path": str(tmp_path / "later.parquet"), "split": yaml_split("predict")})
    assert read(later, "eval").dense.ravel().tolist() == [0.0, 1.0]
    assert bucket.buckets == again.sparse[0].buckets


def test_a_run_with_the_configuration_of_another_has_its_statistics(folder: Path, tmp_path: Path) -> None:
    standardised, buckets = [{"name": "x", "transform": "standardise"}], {"name": "b", "column": "x", "buckets": 4}
    data = dataset(folder / "a.parquet", dense=standardised, sparse=[buckets])
    first = inspect(data).settled
    assert first is not None
    write_run(make_run(dataset=first.model_dump()), tmp_path / "config.yaml")
    whole = pq.read_table(folder / "a.parquet")
    later = whole.set_column(whole.column_names.index("x"), "x", pc.add(whole["x"], 500.0))
    pq.write_table(later, tmp_path / "later.parquet")
    second = compose_run([f"conf={tmp_path / 'config.yaml'}", f"dataset.path={tmp_path / 'later.parquet'}"]).dataset
    assert isinstance(second, ParquetDataset)
    known = inspect(second).settled or second
    assert (known.dense, known.sparse) == (first.dense, first.sparse)
    anew = inspect(data.model_copy(update={"path": second.path})).settled
    assert anew is not None
    assert anew.dense_features[0].mean == pytest.approx((first.dense_features[0].mean or 0.0) + 500.0)


def test_statistics_of_any_size_are_read_again(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1, 0, 1], "x": [1e18, 3e18, 0.0, 7e18]}), tmp_path / "a.parquet")
    settled = inspect(dataset(tmp_path, dense=[{"name": "x", "transform": "standardise"}])).settled
    assert settled is not None
    assert ParquetDataset.model_validate_json(settled.model_dump_json()) == settled
    assert np.abs(read(settled, "train").dense).max() < 2.0


def yaml_split(kind: str) -> Any:
    return dataset("x", split={"kind": kind}).split


def test_without_training_rows_there_are_no_statistics(folder: Path) -> None:
    data = dataset(folder, dense=[{"name": "x", "transform": "standardise"}], split={"kind": "predict"})
    with pytest.raises(DataError, match="x is transformed by statistics of the training rows, but there are none here"):
        inspect(data)
    constant = dataset(folder, dense=[{"name": "one", "transform": "standardise"}])
    table = pq.read_table(folder / "a.parquet")
    pq.write_table(table.append_column("one", pa.array([1.0] * ROWS)), folder / "a.parquet")
    with pytest.raises(DataError, match="dense feature one cannot be standardised"):
        inspect(constant)


@pytest.mark.parametrize("value", [0.1, 1e10 + 0.1, -3.3e-7])
def test_a_column_that_is_always_the_same_is_not_standardised(tmp_path: Path, value: float) -> None:
    """Its mean may not be a float64, and then no value is the mean."""
    pq.write_table(pa.table({"y": [0, 1] * 50, "x": [value] * 100}), tmp_path / "a.parquet", row_group_size=7)
    with pytest.raises(DataError, match="feature x cannot be standardised: its values are the same"):
        inspect(dataset(tmp_path, dense=[{"name": "x", "transform": "standardise"}]))


def test_statistics_of_numbers_far_from_zero_are_exact(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1] * 50, "x": [1e15, 1e15 + 1] * 50}), tmp_path / "a.parquet", row_group_size=7)
    split = {"kind": "files", "train": ["*"]}
    found = inspect(dataset(tmp_path, split=split, dense=[{"name": "x", "transform": "standardise"}])).settled
    assert found is not None
    assert (found.dense_features[0].mean, found.dense_features[0].deviation) == (1e15 + 0.5, 0.5)


@pytest.mark.parametrize("boundaries", [[0.0, float("nan")], [0.0, float("inf")]])
def test_boundaries_are_numbers(boundaries: list[float]) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        dataset(".", sparse=[{"name": "x", "buckets": boundaries}])


def test_dates_and_decimals_are_scaled_as_well(tmp_path: Path) -> None:
    day = pa.array([19000, 20000, 20000, 19000], pa.date32())
    table = {"y": [0, 1, 0, 1], "at": day.cast(pa.timestamp("us")), "day": day, "price": pa.array([5000, 6000] * 2)}
    table["price"] = table["price"].cast(pa.decimal128(21, 2))
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    rows = read(dataset(tmp_path, dense=["price"], split={"kind": "eval"}), "eval").dense
    assert np.abs(rows).min() > 20, "nothing is known of training rows"
    settled = inspect(dataset(tmp_path, dense=["at", "day", "price"], split={"kind": "every", "n": 4})).settled
    assert settled is not None
    assert [each.transform for each in settled.dense_features] == ["standardise"] * 3
    assert np.abs(read(settled, "train").dense).max() < 2


def test_numbers_far_from_1_are_scaled_by_the_training_rows(folder: Path) -> None:
    settled = inspect(dataset(folder, dense=["x", "stars"])).settled
    assert settled is not None
    [x, stars] = settled.dense_features
    assert (x.transform, settled.rescale, stars.transform) == ("standardise", False, None)
    assert x.mean == pytest.approx(1e6, abs=200)
    assert inspect(settled).settled == settled, "the choice is kept"
    for data in (dataset(folder, rescale=False), dataset(folder, dense=[{"name": "x", "transform": "log1p"}])):
        found = inspect(data).found
        assert found is not None
        assert found.rescaled == ()
        assert [each.transform for each in found.settled.dense_features] == [
            each.transform for each in data.dense_features
        ]


def test_a_long_tail_is_taken_by_its_logarithm(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    columns = {"y": np.arange(ROWS) % 2, "gain": draw.pareto(1.0, ROWS) * 100, "age": draw.integers(17, 90, ROWS)}
    pq.write_table(pa.table(columns | {"small": draw.normal(0, 3, ROWS)}), tmp_path / "a.parquet")
    settled = inspect(dataset(tmp_path, dense=["gain", "age", "small"])).settled
    assert settled is not None
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
    with pytest.raises(DataError, match=r"declare which one is positive: dataset.labels=\[\{name: word, positive: VAL"):
        inspect(dataset(folder, labels=["word"]))
    with pytest.raises(
        DataError, match=r"or declare which values are positive: dataset.labels=\[\{name: sign, positive: 1\}\]"
    ):
        read(dataset(folder, labels=["sign"]), "train")
    with pytest.raises(DataError, match="column word holds strings; write the positive value of this label in quotes"):
        inspect(dataset(folder, labels=[{"name": "word", "positive": 1}]))
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
    assert settled is not None
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


def test_a_missing_value_without_fill_is_named_and_counts_once(folder: Path) -> None:
    words: dict[str, Any] = {"dense": [{"name": "x", "transform": "piecewise", "bins": 8}]}
    with pytest.raises(DataError, match="of dense column x are unusable, the first is null or NaN in row 1;"):
        read(dataset(folder, **words, fill=None), "train")
    source = open_source(dataset(folder, **words), "train", 0)
    source.read(0, 0, source.rows)
    assert source.counts["filled_dense_values"] == pq.read_table(folder / "a.parquet").column("x").null_count
    source.close()


def test_bins_of_equal_edges_become_one_and_a_constant_has_none(tmp_path: Path) -> None:
    table = {"y": [0, 1] * 20, "x": [0.0] * 36 + [1.0, 2.0, 3.0, 4.0], "same": [5.0] * 40}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    settled = inspect(dataset(tmp_path, dense=[{"name": "x", "transform": "piecewise", "bins": 10}])).settled
    assert settled is not None
    assert settled.dense_features[0].bins is not None
    assert 1 <= settled.dense_width < 5
    with pytest.raises(DataError, match="dense feature same cannot have bins"):
        inspect(dataset(tmp_path, dense=[{"name": "same", "transform": "piecewise", "bins": 3}]))


@pytest.mark.parametrize(
    ("values", "buckets", "rows"),
    [
        ([*range(100)], 4, [25, 25, 25, 25]),
        ([0] * 80 + [*range(1, 21)], 4, [80, 20]),
        ([0] * 60 + [1] * 40, 2, [60, 40]),
        ([0] * 60 + [1] * 40, 3, [60, 40]),
        ([0] * 40 + [1] * 60, 2, [40, 60]),
        ([0] * 48 + [1] * 24 + [2] * 12 + [3] * 8 + [4] * 8, 3, [48, 24, 28]),
        ([7] * 99 + [8], 5, [99, 1]),
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


@pytest.mark.parametrize("value", [3.0, None])
def test_a_column_without_two_values_has_no_buckets(value: float | None, tmp_path: Path) -> None:
    table = pa.table({"y": [0, 1] * 50, "x": pa.array([value] * 100, pa.float64())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="sparse feature bucket cannot have buckets: its values are missing, or equal"):
        inspect(dataset(tmp_path, sparse=[{"name": "bucket", "column": "x", "buckets": 4}]))


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
    assert settled is not None
    assert [each.transform for each in settled.dense_features] == ["standardise", None]
    assert np.abs(read(settled, "train").dense).max() < 6


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_lists_of_numbers_far_from_1_are_warned_of(tmp_path: Path, scale: float) -> None:
    vectors = pa.array([[scale, -scale], None, [0.0, math.nan]] * 20, pa.list_(pa.float32()))
    pq.write_table(pa.table({"y": [0, 1, 1] * 20, "v": vectors}), tmp_path / "a.parquet", write_statistics=False)
    warnings = inspect(dataset(tmp_path, dense=["v"], split={"kind": "every", "n": 4})).warnings
    assert len(warnings) == (scale > 20)
    assert all(" v;" in each for each in warnings)
