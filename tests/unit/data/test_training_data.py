"""Training data is the same where its samples and their order are: at another place, but not in other row groups."""

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.control.position import TrainingData
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.source import Source, open_source
from persia_cli.errors import DataError
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
    write(folder / "unused.parquet")
    assert found(folder, split=SPLIT).order == before.order
    write(folder / "day-2.parquet", group_rows=20)
    assert found(folder, split=SPLIT, shuffle=False).order == in_order.order


def test_a_copy_has_the_same_content_and_a_flipped_label_another(folder: Path) -> None:
    """The flipped label changes no size and no statistic of the file, which is as old as before."""
    before = found(folder, split=SPLIT)
    assert len(set(before.contents)) == 1  # the files are equal
    write(folder / "last.parquet")
    os.utime(folder / "day-1.parquet")
    assert found(folder, split=SPLIT) == before
    file = folder / "last.parquet"
    table, old = pq.read_table(file), file.stat()
    labels = pa.array([1, 0, *table["y"].to_pylist()[2:]])
    pq.write_table(table.set_column(0, "y", labels), file, row_group_size=10)
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert file.stat().st_size == old.st_size
    changed = found(folder, split=SPLIT)
    assert changed.order == before.order
    assert changed.contents[:2] == before.contents[:2]
    assert changed.contents[2] != before.contents[2]


def test_text_is_known_by_its_own_content(tmp_path: Path, cache: Path) -> None:
    table = rows()
    write_csv(tmp_path / "a.csv", table)
    before = found(tmp_path)
    os.utime(tmp_path / "a.csv")
    assert found(tmp_path) == before
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "a.csv").write_text(text[:-2] + ("1" if text[-2] != "1" else "2") + text[-1])
    changed = found(tmp_path)
    assert (changed.order, changed == before) == (before.order, False)


def test_text_that_changes_while_it_is_converted_is_an_error(tmp_path: Path, cache: Path) -> None:
    write_csv(tmp_path / "a.csv", rows())

    def change(path: str, done: int, total: int) -> None:
        Path(path).touch()

    with pytest.raises(DataError, match=r"a\.csv was changed, replaced or removed while it was read"):
        inspect(dataset(tmp_path), change)
    assert not list(cache.rglob("*.parquet"))


def read_epochs(source: Source) -> None:
    for epoch in range(3):
        source.read(epoch, 0, source.rows)


@pytest.mark.parametrize("how", ["replaced", "written in place", "removed"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, how: str, shuffle: bool) -> None:
    """Also one that stays open; the other file of the same rows is never read in its place."""
    path, other = tmp_path / "a.parquet", tmp_path / "b.new"
    write(path, count=60_000, group_rows=20_000)
    write(other, count=60_000, group_rows=20_000, part=3)
    source = open_source(dataset(path, split={"kind": "every", "n": 10}, shuffle=shuffle), "train", 0)
    source.read(0, 0, 100)
    if how == "replaced":
        other.replace(path)
    elif how == "removed":
        path.unlink()
    else:
        path.write_bytes(other.read_bytes())
    reason = r"a\.parquet was changed, replaced or removed|a\.parquet, row group [0-9]: cannot be read"
    with pytest.raises(DataError, match=reason), closing(source):
        read_epochs(source)


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
