"""Training data is the same where the order of its samples is: at another place, but not in other row groups."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.control.position import TrainingData
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import open_source
from tests.support.text_files import dataset, rows, write_csv

SPLIT = {"kind": "files", "train": ["day-*"], "eval": ["last*"]}


def write(path: Path, count: int = 100, group_rows: int = 10, part: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"y": [0, 1] * (count // 2), "d": [0.5] * count, "c": list(range(count))}
    pq.write_table(pa.table({**columns, "part": [n % part for n in range(count)]}), path, row_group_size=group_rows)


def found(place: Path, **changes: Any) -> TrainingData:
    """The description of a data set; each loader finds the same."""
    data = dataset(place, **changes)
    source = open_source(data, "train", 0)
    source.close()
    assert source.train_data == inspect(data).train_data
    return source.train_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("day-1", "day-2", "last"):
        write(tmp_path / "data" / f"{name}.parquet")
    return tmp_path / "data"


def test_it_is_the_same_elsewhere(folder: Path, tmp_path: Path) -> None:
    before = found(folder, split=SPLIT)
    assert (before.files, before.row_groups) == (2, 20)
    shutil.move(folder, tmp_path / "disk" / "moved")
    folder.symlink_to(tmp_path / "disk" / "moved")
    assert found(folder, split=SPLIT) == before == found(tmp_path / "disk" / "moved", split=SPLIT)
    assert found(tmp_path / "disk" / "*", split=SPLIT) == before


def test_files_and_row_groups_that_no_sample_depends_on_may_change(folder: Path) -> None:
    before, in_order = found(folder, split=SPLIT), found(folder, split=SPLIT, shuffle=False)
    write(folder / "last.parquet", group_rows=7)
    write(folder / "last-2.parquet")
    assert found(folder, split=SPLIT) == before
    write(folder / "day-2.parquet", group_rows=20)
    assert found(folder, split=SPLIT, shuffle=False) == in_order


@pytest.mark.parametrize("split", [SPLIT, {"kind": "every", "n": 5}])
def test_other_row_groups_names_and_orders_are_reported(folder: Path, split: Any) -> None:
    before = found(folder, split=split)
    write(folder / "day-2.parquet", group_rows=20)
    wider = found(folder, split=split)
    assert wider.row_groups == before.row_groups - 5
    write(folder / "day-2.parquet")
    assert found(folder, split=split) == before
    shutil.move(folder / "day-2.parquet", folder / "day-3.parquet")
    renamed = found(folder, split=split)
    assert (renamed.files, renamed.row_groups) == (before.files, before.row_groups)
    assert renamed != before


def test_rows_that_change_the_split_are_reported(folder: Path) -> None:
    """Of a split by column the rows of each group count, of every n-th row the number of rows before a file."""
    by_column = {"kind": "column", "column": "part", "train": 1, "eval": 0}
    before = found(folder, split=by_column)
    write(folder / "day-1.parquet", part=4)
    assert found(folder, split=by_column) != before
    write(folder / "day-1.parquet", count=2, group_rows=2)
    every = {"split": {"kind": "every", "n": 2}, "shuffle": False}
    before = found(folder, **every)
    write(folder / "a.parquet", count=2, group_rows=1)
    assert found(folder, **every) != before


def test_text_that_is_converted_again_is_the_same(tmp_path: Path, cache: Path) -> None:
    write_csv(tmp_path / "a.csv", rows())
    before = found(tmp_path)
    shutil.rmtree(cache)
    assert found(tmp_path) == before
    assert before.files == 1
