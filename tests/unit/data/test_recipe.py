"""Recipes: found by name, loaded by path, and writing whole folders or nothing."""

import ast
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.recipe import GroupedWriter, list_recipes, load_recipe, new_folder
from persia_cli.errors import DataError
from persia_cli.share import shared


def test_recipes_are_listed_and_loaded() -> None:
    assert {"adult_income", "avazu", "criteo", "movielens", "my_data", "taobao"} <= set(list_recipes())
    for name in list_recipes():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.folder == shared("recipes") / name
        assert len(recipe.title) > 10
        assert callable(recipe.prepare)


def test_an_unknown_recipe_names_its_neighbour() -> None:
    with pytest.raises(DataError, match=r"no recipe critoe; did you mean criteo\?"):
        load_recipe("critoe")
    with pytest.raises(DataError, match="no recipe zzz; there is: adult_income, criteo"):
        load_recipe("zzz")


def test_recipes_import_nothing_of_persia_but_its_data_room() -> None:
    for path in sorted(shared("recipes").glob("*/prepare.py")):
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported.update(name.name for name in node.names)
        ours = {name for name in imported if name.startswith(("persia", "."))}
        assert ours, path
        assert all(name.startswith("persia_cli.data.") for name in ours), path


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "data"
    with new_folder(output) as folder:
        (folder / "a").write_text("1")
        assert not output.exists()
    assert [path.name for path in output.parent.iterdir()] == ["data"]
    assert (output / "a").read_text() == "1"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "data"
    with pytest.raises(ZeroDivisionError), new_folder(output) as folder:
        (folder / "a").write_text(str(1 // len(list(folder.iterdir()))))
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten_but_an_empty_folder_is_taken(tmp_path: Path) -> None:
    output = tmp_path / "data"
    output.mkdir()
    with new_folder(output) as folder:
        (folder / "a").write_text("1")
    with pytest.raises(DataError, match=r"data exists already; name a folder that does not"), new_folder(output):
        pytest.fail("it was given a folder")
    with pytest.raises(DataError, match="a exists already"), new_folder(output / "a"):
        pytest.fail("it was given a folder")
    with pytest.raises(DataError, match="cannot write"), new_folder(output / "a" / "below"):
        pytest.fail("it was given a folder")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 23), max_size=8), st.integers(1, 9))
def test_row_groups_are_of_equal_size(tmp_path_factory: pytest.TempPathFactory, parts: list[int], size: int) -> None:
    path = tmp_path_factory.mktemp("writer") / "a.parquet"
    first = 0
    with GroupedWriter(path, size) as writer:
        for rows in parts:
            writer.write(pa.table({"n": pa.array(range(first, first + rows), pa.int64())}))
            first += rows
    assert writer.rows == first
    if first:
        with pq.ParquetFile(path) as file:
            counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            assert file.read().column("n").to_pylist() == list(range(first))
        assert counts[:-1] == [size] * (len(counts) - 1)
        assert sum(counts) == first
