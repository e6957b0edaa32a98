"""Which files a path means."""

from pathlib import Path

import pytest

from persia_cli.data.files import find_files, locate
from persia_cli.errors import DataError
from persia_cli.shipped import shipped


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "day_1/b.parquet",
        "day_1/a.pq",
        "day_2/c.parquet",
        "day_2/_metadata",
        "day_2/.hidden.parquet",
        "_temporary/d.parquet",
        ".partial/e.parquet",
        "README.md",
        "rows.bin",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
    return tmp_path


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
