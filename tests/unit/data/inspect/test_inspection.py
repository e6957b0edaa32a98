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
    assert figures is not None
    assert (figures.least, figures.greatest) == (prices.min(), prices.max())
    assert figures.mean == pytest.approx(prices.mean())
    assert figures.median == pytest.approx(np.median(prices))
    assert columns["bought"].means["train"] == given["bought"][:TRAIN].mean()
    assert columns["bought"].means["eval"] == given["bought"][TRAIN:].mean()
    assert columns["empty"].coverage == 0.0


def test_ids_are_counted(found: Inspection) -> None:
    columns, given = found.profile.columns, shop()
    item, counts = np.unique(given["item"], return_counts=True)
    assert columns["item"].distinct == item.size
    assert columns["item"].top[0] == (str(item[counts.argmax()]), counts.max() / ROWS)
    assert columns["row_id"].distinct == ROWS
    assert {name for name, _ in columns["user"].top} <= {str(number * APART) for number in range(-20, 130)}
    assert columns["city"].top == (("Rome", 0.5), ("Bern", 0.25), ("Oslo", 0.25)) or columns["city"].top == (
        ("Rome", 0.5), ("Oslo", 0.25), ("Bern", 0.25),
    )  # fmt: skip


def test_lengths_of_lists(found: Inspection) -> None:
    lengths = found.profile.columns["last"].lengths
    empty = sum(not ids for ids in shop()["last"].to_pylist())
    assert lengths is not None
    assert (lengths.least, lengths.greatest, lengths.counts) == (0, 2, (empty, 0, ROWS - empty))
    assert lengths.mean == pytest.approx(2 * (ROWS - empty) / ROWS)
    assert (lengths.covering(empty / ROWS), lengths.covering(1.0)) == (0, 2)


def test_drift_between_the_splits(found: Inspection) -> None:
    columns, given = found.profile.columns, shop()
    user = given["user"].to_numpy()
    known, seen = set(user[:TRAIN].tolist()), user[TRAIN:]
    new = [u for u in set(seen.tolist()) if u not in known]
    drift = columns["user"].drift
    assert drift.unseen_ids == len(new) / len(set(seen.tolist()))
    assert drift.unseen_lookups == sum(u in set(new) for u in seen.tolist()) / seen.size
    assert columns["item"].drift.unseen_lookups == pytest.approx(0.0, abs=0.05)
    for name, least, most in (("price", 2.0, math.inf), ("bought", 0.25, 0.4), ("city", 0.0, 0.01), ("item", 0, 0.1)):
        stability = columns[name].drift.stability
        assert stability is not None
        assert least <= stability <= most, name


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
    values = yaml.safe_load(found.suggestion)
    dataset = ParquetDataset.model_validate(values)
    assert dataset.labels == ("bought",)
    assert dataset.dense == ("price",)
    assert [(feature.name, feature.table, feature.pooling) for feature in dataset.sparse] == [
        ("user", None, "sum"), ("item", None, "sum"), ("last", None, "mean"), ("city", None, "sum"),
    ]  # fmt: skip
    assert dataset.fill == 0.0
    assert dataset.split.model_dump(exclude_none=True) == {
        "kind": "column",
        "column": "part",
        "train": "train",
        "eval": "valid",
    }
    facts = inspect(dataset)
    assert (facts.train_rows, facts.eval_rows) == (TRAIN, ROWS - TRAIN)


def test_the_census_that_ships_is_understood() -> None:
    found = inspect_data("builtin:adult_income", lambda done, total: None)
    roles = {name: guess.role for name, guess in found.roles.items()}
    assert (roles["label"], roles["split"], roles["age"], roles["occupation"]) == ("label", "split", "dense", "sparse")
    assert found.profile.split_rows == {"train": 32_561, "eval": 16_281}
    assert found.profile.columns["occupation"].distinct == 15
    assert found.profile.columns["label"].means["train"] == pytest.approx(7841 / 32_561)
    assert yaml.safe_load(found.suggestion)["path"] == "builtin:adult_income"


@pytest.mark.parametrize(
    ("column", "role", "distinct"),
    [
        (pa.array(np.arange(ROWS) % 40 * 7.0, mask=np.arange(ROWS) % 9 == 0), "sparse", 40),  # as pandas has them
        (pa.array(np.arange(ROWS) % 3 * -1.0, pa.float32()), "sparse", 3),
        (pa.array(np.arange(ROWS) % 2 * 1.0), "dense", 2),
        (pa.array(np.arange(ROWS) % 400 * 1.0), "dense", 400),  # too few rows each
        (pa.array(np.arange(ROWS) * 1.0), "unused", None),  # it numbers the rows
        (pa.array(np.where(np.arange(ROWS) == ROWS - 1, 0.5, np.arange(ROWS) % 40)), "dense", None),
        (pa.array(np.where(np.arange(ROWS) == 1, 0.5, np.arange(ROWS) % 40)), "dense", None),
        (pa.array(np.where(np.arange(ROWS) == 1, 1e300, np.arange(ROWS) % 40)), "dense", None),
    ],
)
def test_a_few_whole_numbers_are_ids(column: Any, role: str, distinct: int | None, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"bought": (np.arange(ROWS) % 5 == 0).astype(np.int8), "shop": column})
    found = inspect_data(str(tmp_path), lambda done, total: None)
    profile = found.profile.columns["shop"]
    assert (found.roles["shop"].role, profile.distinct) == (role, distinct)
    assert (profile.count > 0) == (distinct is not None)
    if role == "sparse":
        assert found.table_rows["shop"] == distinct
        assert "list it in dense if it is an amount" in found.suggestion
        assert profile.drift.unseen_ids == 0.0
        assert inspect(ParquetDataset.model_validate(yaml.safe_load(found.suggestion))).sparse[0].name == "shop"


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (("train-1.parquet", "train-2.parquet", "test-1.parquet"), {"train": ["train*"], "eval": ["test*"]}),
        (("Train/a.parquet", "valid/a.parquet"), {"train": ["Train*"], "eval": ["valid*"]}),
    ],
)
def test_files_that_are_called_by_their_split(tmp_path: Path, names: tuple[str, ...], split: dict[str, Any]) -> None:
    columns = {"y": np.arange(50) % 2, "x": np.arange(50) / 7}
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, columns)
    found = look(tmp_path)
    assert yaml.safe_load(found.suggestion)["split"] == {"kind": "files", **split}
    assert found.profile.split_rows == {"train": 50 * (len(names) - 1), "eval": 50}


def test_rows_in_order_where_nothing_makes_a_split(tmp_path: Path) -> None:
    found = look(write(tmp_path / "a.parquet", {"y": np.arange(103) % 2, "id": np.arange(103)}, 10))
    assert found.profile.split_rows == {"train": 82, "eval": 21}
    assert found.profile.columns["id"].drift.unseen_ids == 1.0
    assert yaml.safe_load(found.suggestion)["split"] == {"kind": "every", "n": 10}


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: parquet\nlabls: [y]\n", r"dataset.yaml: labls=\[\"y\"\]: no such key; did you mean labels"),
        ("kind: parquet\nlabels: 7\n", "dataset.yaml: labels=7: expected a list of texts"),
        ("- a\n", "dataset.yaml: expected the keys of a data set"),
        ("a: [", "dataset.yaml: cannot be read"),
    ],
)
def test_a_wrong_description_is_reported_by_its_keys(tmp_path: Path, text: str, told: str) -> None:
    write(tmp_path / "shop.parquet", shop())
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=told):
        look(tmp_path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist; give a file, a folder or a URI of Parquet, CSV or JSON Lines"),
        (b"label,user\n1,2\n", "is not a readable Parquet file (Parquet magic bytes not found in footer"),
        (b"", "is not a readable Parquet file ("),
    ],
)
def test_what_is_no_parquet(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "shop.dat"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as failure:
        look(path)
    assert text in str(failure.value)
    assert "persia recipe ls" in str(failure.value)
    assert "\n" not in str(failure.value)


def test_files_that_differ_and_files_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": np.arange(3)})
    write(tmp_path / "b.parquet", {"y": np.arange(3) / 2})
    with pytest.raises(DataError, match=r"b.parquet has other columns or types than .*a.parquet; give files"):
        look(tmp_path)
    write(tmp_path / "c.parquet", {"y": np.arange(0)})
    with pytest.raises(DataError, match="the files hold no rows"):
        look(tmp_path / "c.parquet")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"y": np.random.default_rng(0).random(50_000)}, 50_000)
    whole = bytearray(path.read_bytes())
    whole[4:200] = bytes(196)
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"a.parquet: cannot be read \(.*\); prepare the file again"):
        look(path)


def test_columns_of_every_arrow_type(tmp_path: Path) -> None:
    """None of them is a reason to fail."""
    day = datetime.datetime(2026, 1, 1)
    columns = {
        "flag": pa.array([True, True, False]),
        "decimal": pa.array([Decimal("1.5"), None, Decimal("2.5")]),
        "day": pa.array([day.date(), None, day.date()]),
        "moment": pa.array([day, day, None]),
        "struct": pa.array([{"a": 1}, None, {"a": 2}]),
        "vector": pa.array([[0.5, 1.0], None, [1.0, 2.0]], pa.list_(pa.float32(), 2)),
        "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
        "bag": pa.array([[1, None], None, []], pa.large_list(pa.uint8())),
        "words": pa.array([["a"], None, []]),
        "none": pa.nulls(3),
        "small": pa.array([1, None, 255], pa.uint8()),
        "nothing": pa.nulls(3, pa.int64()),
        "text": pa.array(["a", None, "a"], pa.large_string()),
        "bytes": pa.array([b"\xff", None, b"a"]),
        "code": pa.array(["x", None, "y"]).dictionary_encode(),
        "infinite": pa.array([math.inf, math.nan, None]),
    }
    found = look(write(tmp_path / "a.parquet", columns))
    roles = {name: guess.role for name, guess in found.roles.items()}
    assert roles["flag"] == "label"
    assert roles["decimal"] == "dense"
    assert {name for name, role in roles.items() if role == "sparse"} == {
        "pair", "bag", "small", "words", "text", "bytes", "code",
    }  # fmt: skip
    assert found.profile.columns["bag"].count == 1
    assert found.profile.columns["code"].distinct == 2
    infinite = found.profile.columns["infinite"].numbers
    assert infinite is not None
    assert (infinite.not_finite, infinite.mean) == (2, None)
    ParquetDataset.model_validate(yaml.safe_load(found.suggestion))


def test_a_shift_to_the_least_value_is_seen(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def numbers(zeros: float) -> Any:
        return np.where(rng.random(ROWS) < zeros, 0.0, rng.random(ROWS) + 0.1)

    columns = {"x": np.r_[numbers(0.05), numbers(0.5)], "split": ["train"] * ROWS + ["eval"] * ROWS}
    stability = look(write(tmp_path / "a.parquet", columns)).profile.columns["x"].drift.stability
    assert stability is not None
    assert stability > 0.5


def test_a_wildcard_may_name_the_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.parquet", shop())
    assert look(tmp_path / "*.parquet").profile.rows == 2 * ROWS


@pytest.mark.parametrize(
    ("values", "doubt"),
    [
        (["yes", "no"] * 20, 'if it is the label, take it out here: labels: [{"name": "back?", "positive": "yes"}]'),
        (["NA", "1", "2.5", "NA"] * 10, "if these are numbers but for NA, say so in dataset.csv.nulls, and inspect ag"),
        (["red", "blue"] * 20, ""),
        (["7up", "1", "NA"] * 10, ""),
    ],
)
def test_text_that_may_be_a_label_or_numbers_is_pointed_at(tmp_path: Path, values: list[str], doubt: str) -> None:
    write(tmp_path / "a.parquet", {"back?": pa.array(values), "n": np.arange(len(values)) / 3})
    found = look(tmp_path)
    assert found.roles["back?"].doubt.startswith(doubt)
    assert bool(found.roles["back?"].doubt) == bool(doubt)
    assert (doubt in found.suggestion) is True
    assert yaml.safe_load(found.suggestion)["sparse"] == ["back?"]


def test_each_entry_of_a_text_with_a_separator_is_an_id(tmp_path: Path) -> None:
    texts = ["action|drama", "drama", "action | comedy|drama", "", None] * 40
    write(tmp_path / "a.parquet", {"y": np.arange(200) % 2, "genres": texts})
    found = look(tmp_path)
    genres = found.profile.columns["genres"]
    assert (genres.distinct, genres.count, genres.nulls) == (3, 240, 40)
    assert dict(genres.top) == pytest.approx({"drama": 0.5, "action": 1 / 3, "comedy": 1 / 6})
    assert found.table_rows["genres"] == 3

    known = {"kind": "parquet", "path": ".", "labels": ["y"], "split": {"kind": "every", "n": 5}}
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(known | {"sparse": [{"name": "genres", "separator": "a"}]}))
    assert set(dict(look(tmp_path).profile.columns["genres"].top)) == {"dr", "m", "ction|dr", "ction | comedy|dr"}


@pytest.mark.parametrize("values", [[True, False, None], [1.0, 0.0, math.nan], [1.0, 0.0, None]])
def test_two_values_and_null_are_ids_and_nothing_is_filled(tmp_path: Path, values: list[Any]) -> None:
    columns = {"y": np.arange(300) % 2, "member": pa.array(values * 100), "active": pa.array([True, False] * 150)}
    write(tmp_path / "a.parquet", columns)
    found = look(tmp_path)
    assert (found.roles["member"].role, found.roles["active"].role) == ("sparse", "dense")
    assert "fraction" not in found.roles["member"].reason + found.roles["active"].reason
    suggested = yaml.safe_load(found.suggestion)
    assert "fill" not in suggested
    assert inspect(ParquetDataset.model_validate(suggested)).train_rows == 270


@pytest.mark.parametrize("form", ["timestamp", "date", "text"])
def test_parts_of_a_time_are_proposed_as_features_that_can_be_read(tmp_path: Path, form: str) -> None:
    days = [datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=7 * hour) for hour in range(300)]
    values = {
        "timestamp": pa.array(days),
        "date": pa.array([day.date() for day in days]),
        "text": pa.array([day.isoformat() for day in days]),
    }
    write(tmp_path / "a.parquet", {"y": np.arange(300) % 2, "u": np.arange(300) % 7, "when": values[form]})
    found = look(tmp_path)
    proposed = yaml.safe_load(found.roles["when"].reason.partition("sparse: ")[2])
    assert [each["transform"] for each in proposed] == (["weekday"] if form == "date" else ["hour", "weekday"])
    assert found.roles["when"].reason in found.suggestion
    suggested = yaml.safe_load(found.suggestion)
    suggested["sparse"] += proposed
    assert inspect(ParquetDataset.model_validate(suggested)).train_rows == 270
