"""Portions of a folder are the same however its files come, recorded before they are trained, and bounded."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema import Run
from persia_cli.control.portions import PlannedPortion
from persia_cli.data.follow.files import first_contents
from persia_cli.errors import CheckpointError, DataError
from persia_cli.roles.coordinator.portions import PortionFinder, recorded
from persia_cli.wire.job_messages import MOST_FILES
from tests.support.growing import put
from tests.support.runs import make_run

ROWS, WAIT_S = 250, 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    put(folder, 0)
    return folder


def run_on(data: Path, **follow: object) -> Run:
    """Return a run whose columns the first file has settled."""
    keys = {"rows": ROWS, "max_wait_s": WAIT_S, "time": "at"} | follow
    columns = {"path": str(data), "labels": ["label"], "dense": ["x"], "split": {"kind": "train"}, "follow": keys}
    run = make_run(["row", "few"], dataset=columns)
    return run.model_copy(update={"dataset": first_contents(run.dataset).settled})


def test_the_first_file_with_rows_settles_the_columns(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    put(folder, 1)
    whole = pq.read_table(folder / "000001.parquet")
    pq.write_table(whole.slice(0, 0), folder / "000000.parquet")
    assert first_contents(run_on(folder).dataset).files[0].name.endswith("/000001.parquet")
    (folder / "000001.parquet").unlink()
    with pytest.raises(DataError, match="no file with rows yet"):
        run_on(folder)


def names(portion: PlannedPortion | None) -> list[str]:
    assert portion is not None
    return [Path(path).stem.lstrip("0") or "0" for path, _, _ in portion.files]


def all_of(finder: PortionFinder) -> list[PlannedPortion]:
    found = []
    while (portion := finder.find().portion) is not None:
        found.append(portion)
    return found


def test_files_that_are_there_and_files_that_come_one_by_one_make_the_same_portions(tmp_path: Path, data: Path) -> None:
    one_by_one = PortionFinder(run_on(data), tmp_path, 0, Clock())
    found = []
    for number in range(1, 8):
        put(data, number)
        found += all_of(one_by_one)
    assert [names(portion) for portion in found] == [["0", "1", "2"], ["3", "4", "5"]]
    assert [(p.number, p.first_step, p.first_sample, p.rows) for p in found] == [(1, 0, 0, 300), (2, 10, 300, 300)]
    assert (found[0].least, found[0].greatest) == (1_700_000_000, 1_700_000_299)

    (tmp_path / "again").mkdir()
    assert all_of(PortionFinder(run_on(data), tmp_path / "again", 0, Clock())) == found


def test_a_portion_ends_when_its_first_file_has_waited(tmp_path: Path, data: Path) -> None:
    clock = Clock()
    finder = PortionFinder(run_on(data), tmp_path, 0, clock)
    waits = finder.find()
    assert waits.portion is None
    assert waits.waiting == pytest.approx((data / "000000.parquet").stat().st_mtime)
    clock.now += WAIT_S
    put(data, 1)
    assert names(finder.find().portion) == ["0", "1"]
    assert finder.find().waiting is None


def test_the_record_comes_first_from_the_step_on_and_then_new_files(tmp_path: Path, data: Path) -> None:
    for number in range(1, 7):
        put(data, number)
    found = all_of(PortionFinder(run_on(data), tmp_path, 0, Clock()))
    with (tmp_path / "portions.jsonl").open("a") as file:
        file.write('{"number": 3, "fir')  # a killed process left it
    for number in (7, 8):
        put(data, number)
    for step, rest in ((0, found), (9, found), (10, found[1:]), (20, [])):
        again = all_of(PortionFinder(run_on(data), tmp_path, step, Clock()))
        assert again[: len(rest)] == rest
        assert again[-1].number == 3
        assert names(again[-1]) == ["6", "7", "8"]
    assert [portion.number for portion in recorded(tmp_path)] == [1, 2, 3]
    with pytest.raises(CheckpointError, match="lacks the portions up to step 31"):
        PortionFinder(run_on(data), tmp_path, 31, Clock()).find()


def test_a_file_with_other_columns_or_none_is_a_trap_or_passed_over(tmp_path: Path, data: Path) -> None:
    pq.write_table(pa.table({"label": [0, 1]}), data / "000001.parquet")
    strict = PortionFinder(run_on(data), tmp_path, 0, Clock())
    assert names(strict.find().portion) == ["0"], "what came before is trained at once"
    assert "000001.parquet: there is no column x" in strict.find().trap
    (tmp_path / "portions.jsonl").unlink()

    run = run_on(data, skip=["unfit_file"])
    (data / "000002.parquet").write_bytes(b"no Parquet")
    for number in (3, 4):
        put(data, number)
    found = PortionFinder(run, tmp_path, 0, Clock()).find()
    assert names(found.portion) == ["0", "3", "4"]
    assert [text.partition(":")[0] for text in found.skipped] == ["passed over (unfit_file)"] * 2


def test_rows_expire_by_the_time_of_the_data_also_after_a_resume(tmp_path: Path, data: Path) -> None:
    for number in range(1, 12):
        put(data, number)
    run = run_on(data)
    run = Run.model_validate(run.model_dump() | {"embedding": {"expire_after": "7m"}})  # 420 samples, one a second
    found = all_of(PortionFinder(run, tmp_path, 0, Clock()))
    assert [portion.expired for portion in found] == [0, 0, 10, 20], "of portions of 300 s that end before"
    for number in range(12, 15):
        put(data, number)
    assert all_of(PortionFinder(run, tmp_path, 40, Clock()))[-1].expired == 30


def test_files_without_rows_are_in_no_portion(tmp_path: Path, data: Path) -> None:
    put(data, 1, rows=0)
    for number in (2, 3):
        put(data, number)
    assert names(PortionFinder(run_on(data), tmp_path, 0, Clock()).find().portion) == ["0", "2", "3"]


def test_what_waits_is_bounded_and_a_look_at_many_files_is_cheap(tmp_path: Path, data: Path) -> None:
    for number in range(1, MOST_FILES + 500):
        put(data, number, rows=1)
    finder = PortionFinder(run_on(data, rows=10**6), tmp_path, 0, Clock())
    began = time.process_time()
    first = finder.find()
    spent = time.process_time() - began
    assert first.portion is not None
    assert len(first.portion.files) == MOST_FILES
    assert len(finder._waiting) == 0
    print(json.dumps({"cpu_s": spent, "files": MOST_FILES}))
    assert spent < 5.0, "1 s on a machine that does nothing else"
