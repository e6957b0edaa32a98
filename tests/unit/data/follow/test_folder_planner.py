"""The planner of a folder: new files in the order of their names, and what breaks that order."""

from pathlib import Path

import pytest

from persia_cli.data.follow.planner import FolderPlanner, Plan
from persia_cli.errors import DataError


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"rows")


def names(plan: Plan) -> list[str]:
    return [file.cursor for file in plan.files]


def test_new_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    put(tmp_path, "day=1/b.parquet", "day=1/a.parquet", "day=2/a.parquet", ".first.parquet", "_unfinished.parquet")
    planner = FolderPlanner(str(tmp_path))
    first = planner.poll(None, 2)
    assert names(first) == ["day=1/a.parquet", "day=1/b.parquet"]
    assert first.files[0].path == str(tmp_path / "day=1/a.parquet")
    assert first.files[0].arrived == (tmp_path / "day=1/a.parquet").stat().st_mtime_ns / 1e9
    put(tmp_path, "day=3/a.parquet")
    assert names(planner.poll("day=1/b.parquet", 9)) == ["day=2/a.parquet", "day=3/a.parquet"]
    assert names(planner.poll("day=3/a.parquet", 9)) == []


def test_a_folder_that_is_not_there_yet_has_no_files(tmp_path: Path) -> None:
    planner = FolderPlanner(str(tmp_path / "later"))
    assert names(planner.poll(None, 9)) == []
    put(tmp_path / "later", "a.parquet")
    assert names(planner.poll(None, 9)) == ["a.parquet"]


def test_a_late_file_is_refused_or_passed_over_once(tmp_path: Path) -> None:
    put(tmp_path, "b.parquet", "c.parquet")
    strict, lenient = FolderPlanner(str(tmp_path)), FolderPlanner(str(tmp_path), ["late_file"])
    for planner in (strict, lenient):
        planner.poll(None, 9)
    put(tmp_path, "a.parquet", "d.parquet")
    with pytest.raises(DataError, match=r"a\.parquet in .* came after c\.parquet.*skip=\[late_file\]"):
        strict.poll("c.parquet", 9)
    plan = lenient.poll("c.parquet", 9)
    assert names(plan) == ["d.parquet"]
    assert "a.parquet" in plan.skipped[0]
    assert not lenient.poll("d.parquet", 9).skipped


def test_a_late_file_is_found_after_a_resume_and_removed_files_are_no_trap(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", "b.parquet", "c.parquet")
    trained = [file.path for file in FolderPlanner(str(tmp_path)).poll(None, 9).files]
    (tmp_path / "a.parquet").unlink()
    put(tmp_path, "d.parquet")
    assert names(FolderPlanner(str(tmp_path), trained=lambda: trained).poll("c.parquet", 9)) == ["d.parquet"]
    put(tmp_path, "aa.parquet")
    with pytest.raises(DataError, match=r"aa\.parquet"):
        FolderPlanner(str(tmp_path), trained=lambda: trained).poll("c.parquet", 9)


def test_a_file_of_another_format_is_no_new_file(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", "b.csv")
    with pytest.raises(DataError, match=r"b\.csv .* is no Parquet file"):
        FolderPlanner(str(tmp_path)).poll(None, 9)
    lenient = FolderPlanner(str(tmp_path), ["unfit_file"])
    assert [*map(len, lenient.poll(None, 9))] == [1, 1]
    assert not lenient.poll("a.parquet", 9).skipped
    resumed = FolderPlanner(str(tmp_path), ["unfit_file"], lambda: [str(tmp_path / "a.parquet")])
    put(tmp_path, "c.parquet")
    assert names(resumed.poll("a.parquet", 1)) == ["c.parquet"]
    put(tmp_path, "d.parquet")
    assert names(resumed.poll("c.parquet", 1)) == ["d.parquet"], "b.csv is no late file"


def test_a_late_file_is_found_where_all_trained_files_are_removed(tmp_path: Path) -> None:
    put(tmp_path, "b.parquet")
    planner = FolderPlanner(str(tmp_path))
    planner.poll(None, 9)
    (tmp_path / "b.parquet").unlink()
    assert names(planner.poll("b.parquet", 9)) == []
    put(tmp_path, "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet in .* came after b\.parquet"):
        planner.poll("b.parquet", 9)


def test_files_in_a_store_have_uris(tmp_path: Path) -> None:
    put(tmp_path, "a b.parquet", "c.parquet")
    uri = f"file://{tmp_path}"
    [first, second] = FolderPlanner(uri).poll(None, 9).files
    assert (first.path, second.cursor) == (str(tmp_path / "a b.parquet"), "c.parquet")


def test_wildcards_are_refused() -> None:
    with pytest.raises(DataError, match="wildcards"):
        FolderPlanner("data/*.parquet")
