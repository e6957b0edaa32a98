"""The files that a path means."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.files import find_files, locate
from persia_cli.data.read.members import members_of
from persia_cli.errors import DataError
from persia_cli.shipped import shipped


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        *("day_1/b.parquet", "day_1/a.pq", "day_2/c.parquet", "day_2/_metadata", "day_2/.hidden.parquet"),
        *("_temporary/d.parquet", ".partial/e.parquet", "README.md", "rows.bin"),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    return tmp_path


def dataset(tree: Path, **changes: Any) -> ParquetDataset:
    keys = {"kind": "parquet", "path": str(tree), "labels": ["y"], "sparse": ["u"], "split": {"kind": "every", "n": 2}}
    return ParquetDataset.model_validate(keys | changes)


def names(tree: Path, path: str) -> list[str]:
    return [str(Path(file.path).relative_to(tree)) for file in find_files(locate(path))]


def test_a_folder_means_its_parquet_files_sorted_without_hidden_ones(tree: Path) -> None:
    assert names(tree, str(tree)) == ["day_1/a.pq", "day_1/b.parquet", "day_2/c.parquet"]
    assert names(tree, f"file://{tree}") == names(tree, str(tree))
    assert [file.nbytes for file in find_files(locate(str(tree)))] == [5, 5, 5]


def test_a_file_is_taken_whatever_its_name(tree: Path) -> None:
    assert names(tree, f"{tree}/rows.bin") == ["rows.bin"]
    assert names(tree, f"{tree}/day_2/.hidden.parquet") == ["day_2/.hidden.parquet"]


def test_wildcards_match_files_and_folders_part_by_part(tree: Path) -> None:
    assert names(tree, f"{tree}/day_*/*.parquet") == ["day_1/b.parquet", "day_2/c.parquet"]
    assert names(tree, f"{tree}/day_[1]") == ["day_1/a.pq", "day_1/b.parquet"]
    assert names(tree, f"{tree}/*.parquet") == []
    assert names(tree, f"{tree}/nowhere/*") == []


@pytest.mark.parametrize("name", ["a[1].parquet", "a*.parquet", "a?.parquet", "~a.parquet"])
def test_a_file_that_exists_is_no_wildcard_and_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in (name, "a1.parquet"):
        (tmp_path / each).write_bytes(b"1")
    assert names(tmp_path, name) == [name]


def test_patterns_of_a_split_are_relative_to_a_folder_with_any_name(tmp_path: Path) -> None:
    (tmp_path / "day[1]").mkdir()
    (tmp_path / "day[1]" / "a.parquet").write_bytes(b"1")
    found = find_files(locate(str(tmp_path / "day[1]")).below("*.parquet"))
    assert [file.path for file in found] == [str(tmp_path / "day[1]" / "a.parquet")]


def test_relative_paths_start_at_the_working_folder_and_home_is_known(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert names(tree, "day_2") == names(tree, "~/day_2") == ["day_2/c.parquet"]
    assert names(tree, "nothing") == []


def test_uris_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match=r"dataset\.path=gopher://x/y is not a place pyarrow can open"):
        locate("gopher://x/y")


def test_built_in_data_is_found_and_typos_are_corrected() -> None:
    (file,) = find_files(locate("builtin:adult_income"))
    assert Path(file.path) == shipped("recipes") / "adult_income" / "data" / "adult_income.parquet"
    with pytest.raises(DataError, match=r"no data set builtin:adult_incom .* did you mean builtin:adult_income\?"):
        locate("builtin:adult_incom")
    with pytest.raises(DataError, match=r"no data set builtin:\.\./recipes/criteo"):
        locate("builtin:../recipes/criteo")


def test_links_that_lead_nowhere_or_back_are_errors(tree: Path) -> None:
    (tree / "_temporary" / "gone").symlink_to("nowhere")
    (tree / "day_1" / ".lock").symlink_to("nowhere")
    assert names(tree, str(tree / "day_1")) == ["day_1/a.pq", "day_1/b.parquet"]  # hidden ones do not matter
    (tree / "day_2" / "d.parquet").symlink_to(tree / "day_1" / "b.parquet")
    (tree / "day_2" / "more").symlink_to(tree / "day_1")
    assert names(tree, str(tree / "day_2" / "more")) == ["day_2/more/a.pq", "day_2/more/b.parquet"]
    (tree / "day_1" / "e.parquet").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"day_1/e\.parquet is a link to nowhere, which does not exist"):
        names(tree, str(tree))
    (tree / "day_1" / "e.parquet").unlink()
    (tree / "day_1" / "up").symlink_to(tree)
    with pytest.raises(DataError, match=r"day_1/up is a link to a folder that it is in"):
        names(tree, str(tree))


def test_data_files_that_are_left_out_are_named(tree: Path) -> None:
    for name in ("_SUCCESS", ".a.parquet.crc", "LICENSE.txt", "dataset.yaml", "part-0001", "x.csv"):
        (tree / name).write_bytes(b"")
    data = dataset(tree)
    with pytest.raises(DataError, match=r"CSV \(x\.csv\).*set dataset\.format"):
        members_of(data, [locate(str(tree))])
    found = members_of(data.model_copy(update={"format": "parquet"}), [locate(str(tree))])
    assert [Path(file.path).name for file in found.parts[0][1]] == ["a.pq", "b.parquet", "c.parquet"]
    assert found.left_out == (
        f"4 files of {tree} (x.csv, .hidden.parquet, part-0001, …); files that a path names are read"
    )


@pytest.mark.parametrize("own", [("config.yaml", "job.json"), ("sweep.json",)])
def test_runs_and_sweeps_in_a_folder_of_data_are_passed_over_and_named(tree: Path, own: tuple[str, ...]) -> None:
    run = tree / "runs" / "first"
    for name in (*own, "events.jsonl", "settings.csv", "checkpoints/step-1/dense.parquet"):
        (run / name).parent.mkdir(exist_ok=True, parents=True)
        (run / name).write_bytes(b"")
    (run / "checkpoints" / "gone").symlink_to("nowhere")
    expected = ["day_1/a.pq", "day_1/b.parquet", "day_2/c.parquet"]
    for path in (str(tree), f"file://{tree}"):
        assert names(tree, path) == expected
    assert names(tree, f"{tree}/run*") == names(tree, f"{tree}/runs/*") == []
    assert names(tree, f"{run}/settings.csv") == ["runs/first/settings.csv"]  # a file that is named is read
    data = dataset(tree)
    assert f"1 run of persia in {tree} (first)" in members_of(data, [locate(str(tree))]).left_out
    (tree / "config.yaml").write_bytes(b"")  # a file that data may have too
    assert names(tree, str(tree)) == expected


def test_a_split_by_files_leaves_out_only_what_its_patterns_name(tree: Path) -> None:
    split = {"kind": "files", "train": ["day_1/*.p*"], "eval": ["day_2"]}
    (tree / "day_1" / "c.csv").write_bytes(b"")  # no pattern names it
    data = dataset(tree, split=split)
    found = members_of(data, [locate(str(tree))])
    assert [(name, len(files)) for name, files in found.parts] == [("train", 2), ("eval", 1)]
    assert ".hidden.parquet" in found.left_out
    assert "c.csv" not in found.left_out
