"""From parts to a data set: whole or resumable, whatever happens, and the same for any number of threads."""

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.data.prepare.options import PrepareOptions, PrepareReport, RecipeStamp, SplitChoice, parse_split
from persia_cli.data.prepare.parts import DatasetPart, PartLog, text_parts
from persia_cli.data.prepare.preparation import write_dataset
from persia_cli.data.prepare.text import TextBlock, TextFormat
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import RARE_ID
from persia_cli.data.read.kinds import INTEGER
from persia_cli.errors import DataError, DiskError
from tests.support.prepared import dataset_of

FORMAT = TextFormat({"y": INTEGER, "user": INTEGER, "time": INTEGER})
DATASET: dict[str, Any] = {"labels": ["y"], "sparse": ["user"], "split": {"kind": "every", "n": 2}}
ROWS = 30


class Source:
    """Three text files of 30 rows, and how often each was read."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"day_{number}" for number in range(3)]
        self.read: Counter[str] = Counter()
        self.broken: str | None = None
        for number, file in enumerate(self.files):
            file.write_text("".join(f"{row % 2}\t{row % 7}\t{100 * row + number}\n" for row in range(ROWS)))

    def parts(self) -> list[DatasetPart]:
        return [
            part for file in self.files for part in text_parts(file, FORMAT, lambda block, f=file: self.table(block, f))
        ]

    def table(self, block: TextBlock, file: Path) -> Any:
        self.read[file.name] += 1
        if file.name == self.broken:
            raise DataError("broken")
        return block.table({"y": block.integers("y"), "user": block.ids("user"), "time": block.integers("time")})


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def make(source: Source, output: Path, time: str | None = None, **options: Any) -> PrepareReport:
    chosen = PrepareOptions(**{"workers": 1} | options)
    return write_dataset(source.parts(), DATASET, output, chosen, lambda done, total: None, time=time)


def rows_of(report: PrepareReport) -> Any:
    return pa.concat_tables([pq.read_table(file) for file in report.files])


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_data_set_is_parquet_and_a_file_that_describes_it(source: Source, tmp_path: Path) -> None:
    report = make(source, tmp_path / "out")
    assert (report.rows, report.bad_rows, report.kept) == (3 * ROWS, 0, 0)
    names = [f"day_{number}-0000.parquet" for number in range(3)]
    assert left(tmp_path / "out") == ["dataset.yaml", *names, "preparation.json"]
    assert report.files == tuple(tmp_path / "out" / name for name in names)
    dataset = dataset_of(report.dataset)
    assert (dataset.path, dataset.labels) == (str(tmp_path / "out"), ("y",))
    facts = inspect(dataset)
    assert (facts.train_rows, facts.eval_rows) == (45, 45)
    with pq.ParquetFile(report.files[0]) as file:
        column = file.metadata.row_group(0).column(1)
        assert column.compression == "ZSTD"
        assert (column.statistics.min, column.statistics.max, column.statistics.null_count) == (0, 6, 0)


def test_threads_change_nothing(source: Source, tmp_path: Path) -> None:
    one, four = (make(source, tmp_path / str(workers), workers=workers, min_count=9) for workers in (1, 4))
    assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in four.files]


def test_what_is_finished_is_kept_and_the_rest_made_after_a_failure(source: Source, tmp_path: Path) -> None:
    source.broken = "day_2"
    with pytest.raises(DataError, match="broken\n  finished files are kept; the same command continues"):
        make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    source.broken = None
    report = make(source, tmp_path / "out")
    assert report.kept == 2
    assert source.read == {"day_0": 1, "day_1": 1, "day_2": 2}
    assert left(tmp_path) == ["day_0", "day_1", "day_2", "out"]
    whole = make(source, tmp_path / "whole")
    assert rows_of(report).equals(rows_of(whole))


def replace_keeping_size_and_time(file: Path) -> None:
    """As `cp -p` and `rsync -t` do, with a file that has other numbers."""
    other, stat = file.with_name("other"), file.stat()
    other.write_text(file.read_text().replace("1", "2"))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(file)


@pytest.mark.parametrize(
    "change",
    [
        lambda source, folder: replace_keeping_size_and_time(source.files[0]),
        lambda source, folder: source.files[0].write_text("1\t5\t5\n"),
        lambda source, folder: os.utime(source.files[0], ns=(1, 1)),
        lambda source, folder: (folder / "day_0-0000.parquet").write_bytes(b"half"),
        lambda source, folder: (folder / "day_0-0000.state").write_text("{"),
        lambda source, folder: (folder / "day_0-0000.state").unlink(),
    ],
)
def test_a_part_that_is_not_surely_finished_is_made_again(change: Any, source: Source, tmp_path: Path) -> None:
    source.broken = "day_2"
    with pytest.raises(DataError, match="broken"):
        make(source, tmp_path / "out")
    change(source, tmp_path / ".out.partial")
    source.broken = None
    report = make(source, tmp_path / "out")
    assert report.kept == 1
    assert source.read["day_0"] == 2
    assert report.rows == sum(pq.read_table(file).num_rows for file in report.files)


@pytest.mark.parametrize(
    "options",
    [{"row_group_rows": 7}, {"min_count": 2}, {"split": SplitChoice("random", 0.5)}, {"recipe": RecipeStamp("r", "0")}],
    ids=lambda options: next(iter(options)),
)
def test_other_options_make_everything_again(options: dict[str, Any], source: Source, tmp_path: Path) -> None:
    source.broken = "day_2"
    with pytest.raises(DataError, match="broken"):
        make(source, tmp_path / "out")
    source.broken = None
    assert make(source, tmp_path / "out", **options).kept == 0


def test_bad_rows_of_kept_parts_count(source: Source, tmp_path: Path) -> None:
    for file in source.files:
        file.write_text(file.read_text() + "x\n")
    with pytest.raises(DataError, match="3 rows do not parse, but at most 2"):
        make(source, tmp_path / "out", max_bad_rows=2)
    report = make(source, tmp_path / "out", max_bad_rows=3)
    assert (report.kept, report.bad_rows, report.rows) == (2, 3, 3 * ROWS)
    assert [(bad.file, bad.line) for bad in report.first_bad_rows] == [(file.name, ROWS + 1) for file in source.files]


def test_a_finished_data_set_is_left_as_it_is_and_another_one_refused(source: Source, tmp_path: Path) -> None:
    first = make(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in first.files}
    second = make(source, tmp_path / "out", workers=2)
    assert (second.rows, second.files, second.nbytes, second.kept) == (first.rows, first.files, first.nbytes, 3)
    assert {path: path.stat().st_mtime_ns for path in first.files} == before
    with pytest.raises(DataError, match=r"out exists already; name a folder that does not exist, or remove it"):
        make(source, tmp_path / "out", row_group_rows=5)
    replace_keeping_size_and_time(source.files[0])
    with pytest.raises(DataError, match="out exists already"):
        make(source, tmp_path / "out")


def test_an_empty_folder_is_taken_and_a_file_is_not(source: Source, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert make(source, tmp_path / "out").rows == 3 * ROWS
    with pytest.raises(DiskError, match="a file is where it needs a folder"):
        make(source, source.files[0] / "below")


def test_two_at_once_are_refused(source: Source, tmp_path: Path) -> None:
    folder = tmp_path / ".out.partial"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="out is being prepared by another process"):
            make(source, tmp_path / "out")
    finally:
        os.close(descriptor)
    assert make(source, tmp_path / "out").rows == 3 * ROWS


def test_a_source_without_rows_makes_no_data_set(source: Source, tmp_path: Path) -> None:
    for file in source.files:
        file.write_text("")
    with pytest.raises(DataError, match="no row of the source can be used"):
        make(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_columns_that_a_recipe_declares_are_checked(source: Source, tmp_path: Path) -> None:
    declared, output = {**DATASET, "spares": []}, tmp_path / "out"
    with pytest.raises(DataError, match=r"columns is wrong: spares=\[\]: no such key; did you mean sparse"):
        write_dataset(source.parts(), declared, output, PrepareOptions(), lambda done, total: None)


def lists(log: PartLog) -> Iterator[Any]:
    ids = pa.array([[1, 2], None, [], [2, 3, None], [-1]], pa.list_(pa.int64()))
    yield pa.table({"y": [0, 1, 0, 1, 0], "tags": ids, "user": pa.array([2, 2, None, 9, 9], pa.uint64())})


def test_rare_ids_become_one_in_lists_too(tmp_path: Path) -> None:
    dataset = {
        "labels": ["y"],
        "sparse": [{"name": "tags", "table": "t"}, {"name": "user", "table": "t"}],
        "split": {"kind": "every", "n": 2},
    }
    options = PrepareOptions(min_count=2)
    report = write_dataset([DatasetPart("p", (), lists)], dataset, tmp_path / "out", options, lambda done, total: None)
    made = pq.read_table(report.files[0])
    # Columns of one table count together: 2 was seen four times, 9 twice, the others once.
    assert made.column("tags").to_pylist() == [[RARE_ID, 2], None, [], [2, RARE_ID, None], [RARE_ID]]
    assert made.column("user").to_pylist() == [2, 2, None, 9, 9]


def splits(report: PrepareReport) -> list[tuple[str, int]]:
    table = rows_of(report)
    return list(zip(table.column("split").to_pylist(), table.column("time").to_pylist(), strict=True))


def test_a_random_split_is_the_same_every_time(source: Source, tmp_path: Path) -> None:
    choice = SplitChoice("random", 0.3)
    one, two = (splits(make(source, tmp_path / str(n), split=choice, workers=n)) for n in (1, 2))
    assert one == two
    assert 10 < sum(split == "eval" for split, _ in one) < 45
    facts = inspect(dataset_of(tmp_path / "1" / "dataset.yaml"))
    assert facts.train_rows + facts.eval_rows == 3 * ROWS


def test_a_chronological_split_goes_by_the_time_or_by_the_order_of_rows(source: Source, tmp_path: Path) -> None:
    choice = SplitChoice("chronological", 0.1)
    by_time = splits(make(source, tmp_path / "time", split=choice, time="time"))
    assert sorted(time for split, time in by_time if split == "eval") == sorted(time for _, time in by_time)[-9:]
    by_row = splits(make(source, tmp_path / "row", split=choice))
    assert [split for split, _ in by_row] == ["train"] * 81 + ["eval"] * 9


def test_files_that_training_would_not_read_are_refused(source: Source, tmp_path: Path) -> None:
    source.files[1] = source.files[1].rename(tmp_path / "_day_1")
    with pytest.raises(DataError, match="_day_1-0000: files with such a name are never read as data"):
        make(source, tmp_path / "out")


def test_an_output_that_cannot_take_its_name_is_refused_at_once(source: Source, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="link is a link or a mount point"):
        make(source, tmp_path / "link")
    assert not source.read


@pytest.mark.parametrize("text", ["random", "random:0", "random:1", "chronological:x", "sorted:0.5", ""])
def test_splits_that_cannot_be_read(text: str) -> None:
    with pytest.raises(DataError, match="expected random:FRACTION or chronological:FRACTION"):
        parse_split(text)
