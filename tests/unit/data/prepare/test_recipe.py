"""Recipes: found by name, loaded by path, copied to start one's own; and tables in row groups."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.data.prepare.recipe import (
    copy_folder,
    declared,
    find_file,
    folder_of,
    kinds_of,
    list_recipes,
    load_recipe,
    source_files,
)
from persia_cli.data.read.kinds import INTEGER, NUMBER, TEXT, hexadecimal, text_of
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.errors import DataError
from persia_cli.shipped import shipped


def test_recipes_are_listed_and_loaded() -> None:
    assert {"adult_income", "avazu", "criteo", "criteo_1tb", "movielens", "my_data", "taobao"} <= set(list_recipes())
    for name in list_recipes():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.folder == shipped("recipes") / name
        assert len(recipe.title) > 10
        assert callable(recipe.prepare)


def test_an_unknown_recipe_names_its_neighbour() -> None:
    with pytest.raises(DataError, match=r"no recipe critoe; did you mean criteo\?"):
        load_recipe("critoe")
    with pytest.raises(DataError, match="no recipe zzz; there is: adult_income, avazu, criteo"):
        load_recipe("zzz")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"), ("", "has no function prepare")],
)
def test_a_recipe_of_ones_own_that_will_not_do(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DataError, match="mine is not a recipe: there is no"):
        load_recipe(str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "prepare.py").write_text(text)
    with pytest.raises(DataError, match=problem):
        load_recipe(str(tmp_path / "mine"))


def test_a_copy_is_a_separate_recipe(tmp_path: Path) -> None:
    copied = copy_folder(folder_of("adult_income"), tmp_path / "mine")
    assert {file.name for file in copied} >= {"prepare.py", "README.md"}
    mine = load_recipe(str(tmp_path / "mine"))
    assert (mine.name, mine.folder, mine.digest) == ("mine", tmp_path / "mine", load_recipe("adult_income").digest)
    assert not (tmp_path / "mine" / "data").exists()
    with pytest.raises(DataError, match="mine exists already"):
        copy_folder(mine.folder, tmp_path / "mine")


def test_data_that_needs_no_preparation_is_copied_too(tmp_path: Path) -> None:
    copied = {file.name for file in copy_folder(folder_of("shop"), tmp_path / "shop")}
    assert copied == {"README.md", "clicks.csv.gz", "shop.jsonl", "shop.yaml"}
    with pytest.raises(DataError, match="shop needs no preparation; persia recipe cp shop DIR copies it"):
        load_recipe("shop")


def test_files_of_a_folder_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("day_10.gz", "day_2.gz", "day_0", ".hidden"):
        (tmp_path / name).write_text("")
    assert [file.name for file in source_files(tmp_path, "")] == ["day_0", "day_2.gz", "day_10.gz"]
    assert source_files(tmp_path / "day_0", "") == [tmp_path / "day_0"]
    assert find_file(tmp_path, "day_2", "") == tmp_path / "day_2.gz"
    with pytest.raises(DataError, match="gone does not exist; look elsewhere"):
        source_files(tmp_path / "gone", "look elsewhere")
    with pytest.raises(DataError, match=r"has neither day_3 nor day_3\.gz; look elsewhere"):
        find_file(tmp_path, "day_3", "look elsewhere")


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


def test_a_field_is_read_in_one_way_that_its_absence_does_not_change() -> None:
    count, absent = {"columns": ["a"], "read": "integer"}, {"columns": ["no_a"], "field": "a", "read": "absence"}
    assert kinds_of(declared(count, absent)) == kinds_of(declared(absent, count)) == {"a": INTEGER}
    assert kinds_of(declared(absent)) == {"a": NUMBER}
    shop = {"columns": ["shop"], "read": "text"}
    assert kinds_of(declared(shop, {"columns": ["b"], "field": "shop", "read": "text"})) == {"shop": TEXT}
    ids = {"columns": ["id"], "read": "hexadecimal", "digits": 8}
    assert kinds_of(declared(ids, shop | {"table": "place"})) == {"id": hexadecimal(8), "shop": text_of("place")}
    for other, says in (
        ({"columns": ["b"], "field": "a", "read": "number"}, "a is declared as integer and as number"),
        ({"columns": ["b"], "field": "a", "read": "text", "table": "t"}, "as integer and as text of table t"),
    ):
        with pytest.raises(DataError, match=says):
            kinds_of(declared(count, absent, other))
