"""Results of the inspection of Parquet files, against the contents that were written."""

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError

ROWS = 4000
APART = 1_000_003
"""From one user's id to the next."""
TRAIN = 3000
"""Rows whose `part` is training; the others have different users."""


def shop(rows: int = ROWS) -> dict[str, Any]:
    """Columns of every kind; users 0-99 train, 50-149 evaluate; what users are called is not counted from 1."""
    rng = np.random.default_rng(7)
    row = np.arange(rows)
    evaluates = row >= rows * TRAIN // ROWS
    user = rng.integers(0, 100, rows) + 50 * evaluates
    return {
        "row_id": row + 10**12,
        "bought": (rng.random(rows) < np.where(evaluates, 0.5, 0.25)).astype(np.int8),
        "price": pa.array(rng.normal(np.where(evaluates, 3.0, 0.0), 1.0), mask=row % 10 == 0),
        "user": pa.array((user - 20) * APART),
        "item": rng.integers(0, 2**63, 400, np.uint64)[rng.zipf(1.5, rows) % 400],
        "last": pa.array(
            [[u * APART, (u + 1) % 100 * APART] if u % 3 else [] for u in (user - 20) % 80], pa.list_(pa.int64())
        ),
        "city": pa.array(np.array(["Bern", "Rome", "Oslo", "Rome"])[row % 4]),
        "country": np.full(rows, 41, np.int32),
        "timestamp": row * 60,
        "empty": pa.nulls(rows, pa.float32()),
        "part": pa.array(np.where(evaluates, "valid", "train")),
    }


def write(path: Path, columns: dict[str, Any], row_group_size: int = 1000) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def look(path: Path) -> Inspection:
    seen: list[tuple[int, int]] = []
    found = inspect_data(str(path), lambda done, total: seen.append((done, total)))
    assert seen[-1] == (found.profile.rows, found.profile.rows)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    return look(write(tmp_path_factory.mktemp("shop") / "shop.parquet", shop()))


def test_rows_nulls_and_ranges(found: Inspection) -> None:
    columns, given = found.profile.columns, shop()
    assert (found.profile.rows, found.profile.source.row_groups) == (ROWS, 4)
    assert found.profile.split_rows == {"train": TRAIN, "eval": ROWS - TRAIN}
    assert (columns["price"].nulls, columns["price"].coverage) == (400, 0.9)
    prices = given["price"].drop_null().to_numpy()
    figures = columns["price"].numbers
    assert (figures.least, figures.greatest) == (prices.min(), prices.max())
    assert figures.mean == pytest.approx(prices.mean())
    assert figures.deviation == pytest.approx(np.std(prices))
    assert columns["bought"].means["train"] == given["bought"][:TRAIN].mean()
    assert columns["bought"].means["eval"] == given["bought"][TRAIN:].mean()
    assert columns["empty"].coverage == 0.0


def test_unseen_ids(found: Inspection) -> None:
    columns, user = found.profile.columns, shop()["user"].to_numpy()
    known, seen = set(user[:TRAIN].tolist()), user[TRAIN:].tolist()
    assert columns["user"].unseen_ids == len(set(seen) - known) / len(set(seen))
    assert columns["user"].unseen_lookups == sum(u not in known for u in seen) / len(seen)


def test_roles_are_guessed(found: Inspection) -> None:
    roles = {name: guess.role for name, guess in found.roles.items()}
    assert roles == {
        "row_id": "unused", "bought": "label", "price": "dense", "user": "sparse", "item": "sparse", "last": "sparse",
        "city": "sparse", "country": "unused", "timestamp": "unused", "empty": "unused", "part": "split",
    }  # fmt: skip
    assert found.roles["city"].reason == "text, hashed when it is read"
    assert found.table_rows["item"] == found.profile.columns["item"].distinct
    assert set(found.table_rows) == {"user", "item", "last", "city"}


def test_the_suggestion_is_a_data_set(found: Inspection) -> None:
    dataset = ParquetDataset.model_validate(yaml.safe_load(found.suggestion))
    dense = [(each.name, each.transform) for each in dataset.dense_features]
    assert (dataset.labels, dense, dataset.fill) == (("bought",), [("price", "standardise")], 0.0)
    pooling = {"user": "sum", "item": "sum", "last": "mean", "city": "sum"}
    assert {feature.name: feature.pooling for feature in dataset.sparse} == pooling
    split = {"kind": "column", "column": "part", "train": "train", "eval": "valid"}
    assert dataset.split.model_dump(exclude_none=True) == split
    facts = inspect(dataset)
    assert (facts.train_rows, facts.eval_rows) == (TRAIN, ROWS - TRAIN)


@pytest.mark.parametrize(
    ("column", "role", "distinct"),
    [
        (pa.array(np.arange(ROWS) % 40 * 7.0, mask=np.arange(ROWS) % 9 == 0), "sparse", 40),  # as pandas has them
        (pa.array(np.arange(ROWS) % 2 * 1.0), "dense", 2),
        (pa.array(np.arange(ROWS) % 400 * 1.0), "sparse", 400),
        (pa.array(np.arange(ROWS) * 1.0), "unused", None),  # it numbers the rows
        (pa.array(np.where(np.arange(ROWS) == ROWS - 1, 0.5, np.arange(ROWS) % 40)), "dense", None),
        (pa.array(np.where(np.arange(ROWS) == 1, 1e300, np.arange(ROWS) % 40)), "dense", None),
    ],
)
def test_a_few_whole_numbers_are_ids(column: Any, role: str, distinct: int | None, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"bought": shop()["bought"], "shop": column})
    found = inspect_data(str(tmp_path), lambda done, total: None)
    profile = found.profile.columns["shop"]
    assert (found.roles["shop"].role, profile.distinct) == (role, distinct)
    assert (profile.count > 0) == (distinct is not None)
    if role == "sparse":
        assert found.table_rows["shop"] == distinct
        assert profile.unseen_ids == 0.0
        assert inspect(ParquetDataset.model_validate(yaml.safe_load(found.suggestion))).sparse[0].name == "shop"


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (("train-1.parquet", "train-2.parquet", "test-1.parquet"), {"train": ["train*"], "eval": ["test*"]}),
        (("Train/a.parquet", "valid/a.parquet"), {"train": ["Train*"], "eval": ["valid*"]}),
        (("train.parquet", "test.parquet", "val.parquet"), {"train": ["train*"], "eval": ["val*"], "test": ["test*"]}),
    ],
)
def test_files_that_are_called_by_their_split(tmp_path: Path, names: tuple[str, ...], split: dict[str, Any]) -> None:
    columns = {"y": np.arange(50) % 2, "x": np.arange(50) / 7}
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, columns)
    found = look(tmp_path)
    assert yaml.safe_load(found.suggestion)["split"] == {"kind": "files", **split}
    assert found.profile.split_rows == {"train": 50 * (len(names) - len(split) + 1), "eval": 50}


def test_rows_in_order_where_nothing_makes_a_split(tmp_path: Path) -> None:
    found = look(write(tmp_path / "a.parquet", {"y": np.arange(103) % 2, "id": np.arange(103)}, 10))
    assert found.profile.split_rows == {"train": 82, "eval": 21}
    assert found.profile.columns["id"].unseen_ids == 1.0
    split = {"kind": "hash", "eval_fraction": 0.1, "test_fraction": 0.1}
    assert yaml.safe_load(found.suggestion)["split"] == split
    few = look(write(tmp_path / "few.parquet", {"y": np.arange(20) % 2, "id": np.arange(20) % 3}))
    assert yaml.safe_load(few.suggestion)["split"] == {"kind": "every", "n": 10}


def test_a_prepared_folder_describes_its_columns(tmp_path: Path) -> None:
    write(tmp_path / "shop.parquet", shop())
    described = {
        "kind": "parquet", "path": "elsewhere", "labels": ["bought"], "split": {"kind": "every", "n": 4, "offset": 3},
        "sparse": [{"name": "person", "column": "user"}],
    }  # fmt: skip
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(described))
    found = look(tmp_path)
    assert found.known is not None
    assert {name for name, guess in found.roles.items() if guess.role != "unused"} == {"bought", "user"}
    assert found.roles["user"].table == "person"
    assert found.profile.split_rows == {"train": 3000, "eval": 1000}


def test_events_of_a_described_folder_are_found_from_elsewhere(tmp_path: Path) -> None:
    columns = {"y": [0, 1] * 20, "user": [1, 2] * 20, "item": [3, 4, 5, 6] * 10, "at": np.arange(40)}
    for name in ("shop", "events"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rows.parquet", columns)
    seen = {"path": "../events", "user": "user", "time": "at", "columns": ["item"], "max_length": 3}
    described = {
        "kind": "parquet", "path": ".", "labels": ["y"], "split": {"kind": "every", "n": 4}, "dense": ["seen.at"],
        "sparse": ["item", {"name": "seen.item", "table": "item", "pooling": "none"}], "histories": {"seen": seen},
    }  # fmt: skip
    (tmp_path / "shop/dataset.yaml").write_text(yaml.safe_dump(described))
    suggested = ParquetDataset.model_validate(yaml.safe_load(look(tmp_path / "shop").suggestion))
    assert "events of 2 users in seen" in inspect(suggested).source


def test_a_wrong_description_is_reported_by_its_keys(tmp_path: Path) -> None:
    write(tmp_path / "shop.parquet", shop())
    for text, told in (
        ("kind: parquet\nlabls: [y]\n", r"dataset.yaml: labls=\[\"y\"\]: no such key; did you mean labels"),
        ("- a\n", "dataset.yaml: expected the keys of a data set"),
        ("a: [", "dataset.yaml: cannot be read"),
    ):
        (tmp_path / "dataset.yaml").write_text(text)
        with pytest.raises(DataError, match=told):
            look(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist; give a file, a folder or a URI"),
        (b"label,user\n1,2\n", "is not a readable Parquet file"),
    ],
)
def test_what_is_no_parquet(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "shop.dat"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"^[^\n]*{text}[^\n]*$"):
        look(path)


def test_files_that_differ_and_files_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": np.arange(3)})
    write(tmp_path / "b.parquet", {"y": np.arange(3) / 2})
    with pytest.raises(DataError, match=r"b.parquet has other columns or types than .*a.parquet; give files"):
        look(tmp_path)
    write(tmp_path / "c.parquet", {"y": np.arange(0)})
    with pytest.raises(DataError, match="the files hold no rows"):
        look(tmp_path / "c.parquet")


def test_columns_of_every_arrow_type(tmp_path: Path) -> None:
    """None of them is a reason to fail."""
    day = datetime.datetime(2026, 1, 1)
    columns = {
        "flag": pa.array([True, True, False]),
        "decimal": pa.array([Decimal("1.5"), None, Decimal("2.5")]),
        "day": pa.array([day.date(), None, day.date()]),
        "moment": pa.array([day, day, None]),
        "struct": pa.array([{"a": 1}, None, {"a": 2}]),
        "nested": pa.array([[[1, 2], [3]], [], None]),
        "vector": pa.array([[0.5, 1.0], None, [1.0, 2.0]], pa.list_(pa.float32(), 2)),
        "bag": pa.array([[1, None], None, []], pa.large_list(pa.uint8())),
        "none": pa.nulls(3),
        "small": pa.array([1, None, 255], pa.uint8()),
        "text": pa.array(["a", None, "a"], pa.large_string()),
        "bytes": pa.array([b"\xff", None, b"a"]),
        "code": pa.array(["x", None, "y"]).dictionary_encode(),
        "infinite": pa.array([math.inf, math.nan, None]),
    }
    found = look(write(tmp_path / "a.parquet", columns))
    roles = {name: guess.role for name, guess in found.roles.items()}
    assert (roles["flag"], roles["decimal"], roles["nested"]) == ("label", "dense", "unused")
    assert {name for name, role in roles.items() if role == "sparse"} == {"bag", "small", "text", "bytes", "code"}
    assert (found.profile.columns["bag"].count, found.profile.columns["code"].distinct) == (1, 2)
    infinite = found.profile.columns["infinite"].numbers
    assert (infinite.not_finite, infinite.mean) == (2, None)
    ParquetDataset.model_validate(yaml.safe_load(found.suggestion))


def test_prices_as_text_are_not_left_out_in_silence(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": np.arange(40) % 2, "price": pa.array([f"{n / 7:.4f}" for n in range(40)])})
    assert "pandas.to_numeric(" in look(tmp_path).suggestion


@pytest.mark.parametrize(
    ("values", "doubt"),
    [
        (["NA", "1", "2.5", "NA"] * 10, "numbers as text, but for 'NA': write numbers, as pandas.to_numeric("),
        (["1.5", "2.25", "3.5"] * 20, "numbers as text: write numbers, as pandas.to_numeric("),
        (["red", "blue", "green"] * 20, ""),
        (["7up", "1", "NA"] * 10, ""),
    ],
)
def test_text_that_may_be_numbers_is_pointed_at(tmp_path: Path, values: list[str], doubt: str) -> None:
    write(tmp_path / "a.parquet", {"back?": pa.array(values), "n": np.arange(len(values)) / 3})
    found = look(tmp_path)
    assert found.roles["back?"].doubt.startswith(doubt)
    assert bool(found.roles["back?"].doubt) == bool(doubt)
    assert (doubt in found.suggestion) is True
    assert yaml.safe_load(found.suggestion)["sparse"] == ["back?"]


@pytest.mark.parametrize("values", [[True, False, None], [1.0, 0.0, math.nan], [1.0, 0.0, None]])
def test_two_values_and_null_are_ids_and_nothing_is_filled(tmp_path: Path, values: list[Any]) -> None:
    columns = {"y": np.arange(300) // 2 % 2, "member": pa.array(values * 100), "active": pa.array([True, False] * 150)}
    write(tmp_path / "a.parquet", columns)
    found = look(tmp_path)
    assert (found.roles["member"].role, found.roles["active"].role) == ("sparse", "dense")
    assert "fraction" not in found.roles["member"].reason + found.roles["active"].reason
    suggested = yaml.safe_load(found.suggestion)
    assert "fill" not in suggested
    assert inspect(ParquetDataset.model_validate(suggested)).train_rows > 200
