"""Columns that folders name: features, splits, groups, kept columns; several paths; splits by several values."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import ColumnSplit
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import NULL_ID, text_id
from persia_cli.data.read.row_groups import HiveColumns, folder_values
from persia_cli.data.read.scan import scan
from persia_cli.data.read.scores_file import KeptColumns
from persia_cli.errors import DataError
from tests.support.samples import read

DAYS = ("2024-01-01", "2024-01-02", "__HIVE_DEFAULT_PARTITION__")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four rows for each of three days and two shops; d numbers them."""
    number = 0
    for day in DAYS:
        for shop, name in ((3, "a%20b"), (12, "a%2Fb")):
            place = tmp_path / f"day={day}" / f"shop={shop}" / f"name={name}"
            place.mkdir(parents=True)
            rows = list(range(number, number + 4))
            table = pa.table({"y": [row % 2 for row in rows], "d": [float(row) for row in rows]})
            pq.write_table(table, place / "part-0.parquet", row_group_size=3)
            number += 4
    return tmp_path


def dataset(path: Any, **changes: Any) -> ParquetDataset:
    keys: dict[str, Any] = {"kind": "parquet", "path": path, "labels": ["y"], "dense": ["d"], "shuffle": False}
    keys["rescale"] = False
    split = {"kind": "column", "column": "day", "eval": "2024-01-02"}
    return ParquetDataset.model_validate({**keys, "split": split, **changes})


def test_folders_are_features_and_make_the_split(folder: Path) -> None:
    features = ["day", {"name": "shop", "missing_id": 7}, "name"]
    data = dataset(str(folder), dense=["d", "shop"], sparse=features, group_by="day")
    facts = inspect(data)
    assert (facts.train_rows, facts.eval_rows, facts.unused_rows) == (16, 8, 0)
    batch = read(data, "eval")
    assert batch.dense[:, 0].tolist() == [*range(12, 16), *range(8, 12)]
    assert batch.dense[:, 1].tolist() == [12.0] * 4 + [3.0] * 4  # files by name
    assert set(batch.query_ids.tolist()) == {text_id("day", "2024-01-02")}
    assert batch.ids.tolist() == [
        *[text_id("day", "2024-01-02")] * 8, *[12] * 4, *[3] * 4,
        *[text_id("name", "a/b")] * 4, *[text_id("name", "a b")] * 4,
    ]  # fmt: skip
    train = read(data, "train")
    assert sorted(train.dense[:, 0].tolist()) == [*range(8), *range(16, 24)]
    assert train.ids.tolist()[8:16] == [NULL_ID] * 8  # the unknown day


@pytest.mark.parametrize(
    ("split", "train", "evaluation"),
    [
        ({"train": ["2024-01-01"], "eval": ["2024-01-02"]}, 8, 8),
        ({"eval": ["2024-01-01", "2024-01-02"]}, 8, 16),
        ({"column": "shop", "train": 3, "eval": 12}, 12, 12),
        ({"column": "name", "eval": "a/b"}, 12, 12),
    ],
)
def test_a_split_by_folders(folder: Path, split: dict[str, Any], train: int, evaluation: int) -> None:
    facts = inspect(dataset(str(folder), split={"kind": "column", "column": "day", **split}))
    assert (facts.train_rows, facts.eval_rows) == (train, evaluation)


def test_a_column_of_the_file_comes_before_its_folder(tmp_path: Path) -> None:
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"y": [0, 1], "d": [0.0, 1.0], "x": [1, 2]}), tmp_path / "x=5" / "a.parquet")
    data = dataset(str(tmp_path), sparse=["x"], split={"kind": "column", "column": "x", "eval": 2})
    assert read(data, "train").ids.tolist() == [1]


def test_folders_are_kept(folder: Path) -> None:
    found = scan(dataset(str(folder)))
    kept = KeptColumns(found, ["day", "shop", "d"])
    columns = kept.take(24)
    kept.close()
    assert columns[0].to_pylist() == ["2024-01-01"] * 8 + ["2024-01-02"] * 8 + [None] * 8
    assert columns[1].to_pylist() == ([12] * 4 + [3] * 4) * 3
    assert [str(field.type) for field in kept.fields] == ["string", "int64", "double"]


def test_types_of_folders() -> None:
    assert folder_values("a/day=x%3Dy/=3/b=/f=1.parquet") == {"day": "x=y", "b": ""}
    schema = pa.schema([("own", pa.int8())])
    hive = HiveColumns(["n=1/s=01/own=3/a", "n=-7/s=1/own=4/b", "n=__HIVE_DEFAULT_PARTITION__/s=2/own=5/c"])
    assert [(f.name, str(f.type)) for f in hive.schema("n=1/s=01/own=3/a", schema)] == [
        ("own", "int8"), ("n", "int64"), ("s", "string"),
    ]  # fmt: skip
    constants = hive.constants("n=-7/s=1/own=4/b", schema)
    assert {name: value.as_py() for name, value in constants.items()} == {"n": -7, "s": "1"}


def test_several_paths_are_read_in_their_order(folder: Path) -> None:
    paths = [str(folder / "day=2024-01-02"), str(folder / "day=2024-01-01"), str(folder / "day=2024-01-02")]
    batch = read(dataset(paths, split={"kind": "predict"}), "eval")
    assert batch.dense[:, 0].tolist() == [*range(12, 16), *range(8, 12), *range(4, 8), *range(4)]
    with pytest.raises(DataError, match="nowhere does not exist; correct the path"):
        inspect(dataset([*paths, str(folder / "nowhere")]))


def test_dates_without_quotes_are_text() -> None:
    import yaml

    values = yaml.safe_load("{kind: column, column: day, train: 2024-01-01, eval: [2024-01-02, 2024-01-03]}")
    split = ColumnSplit.model_validate(values)
    assert (split.values("train"), split.values("eval")) == (("2024-01-01",), ("2024-01-02", "2024-01-03"))
    with pytest.raises(ValidationError, match="would have samples in common"):
        ColumnSplit.model_validate({**values, "eval": ["2024-01-01"]})
