"""A row that a recipe cannot use is named by its file and line, and ends the recipe unless such rows are allowed."""

from pathlib import Path

import pytest

from persia_cli.data.prepare.recipe import load_recipe
from persia_cli.errors import DataError
from tests.recipes import (
    test_adult_recipe,
    test_avazu_recipe,
    test_criteo_recipe,
    test_movielens_recipe,
    test_taobao_recipe,
)
from tests.support.prepared import prepare

GOOD = test_criteo_recipe.GOOD
FILES = {
    "adult_income": {"adult.data": test_adult_recipe.DATA, "adult.test": test_adult_recipe.TEST},
    "avazu": {"train.csv": test_avazu_recipe.text("14102100", "14102101").encode()},
    "criteo": {"day_0": b"\n".join([GOOD, GOOD, GOOD, b""])},
    "movielens": test_movielens_recipe.RELEASES["1m"],
    "movielens 25m": test_movielens_recipe.RELEASES["25m"],
    "my_data": {"purchases.csv": (load_recipe("my_data").folder / "purchases.csv").read_bytes()},
    "taobao": {name: text.encode() for name, text in test_taobao_recipe.FILES.items()},
}
"""The files of each recipe, without damage."""


@pytest.mark.parametrize(
    ("recipe", "file", "old", "new", "named"),
    [
        ("adult_income", "adult.data", b"39", b"", "line 1: age is missing"),
        ("adult_income", "adult.data", b"<=50K", b"50K", "line 1: income is not <=50K or >50K"),
        ("avazu", "train.csv", b",0,14102100", b",2,14102100", "line 2: click is neither 0 nor 1"),
        ("avazu", "train.csv", b"14102100", b"14133100", "line 2: hour is not a YYMMDDHH time"),
        ("avazu", "train.csv", b"1fbe01fe", b"1fbe01f", "line 2: site_id is not 8 hexadecimal digits"),
        ("criteo", "day_0", GOOD, GOOD[:-20], "line 1: 38 fields where there are 40 columns"),
        ("criteo", "day_0", b"1\t\t", b"2\t\t", "line 1: the label is neither 0 nor 1"),
        ("criteo", "day_0", b"\t-2\t", b"\t1.5\t", "line 1: I2 is not an integer of at most 18 digits"),
        ("movielens", "ratings.dat", b"::5::", b"::6::", "line 1: the rating is not within 0.5 to 5"),
        ("movielens", "ratings.dat", b"1::1193", b"3::1193", "line 1: the user is not in users.dat"),
        ("movielens 25m", "ratings.csv", b"1,306", b"1,307", "line 3: the movie is not in movies.csv"),
        ("my_data", "purchases.csv", b",37.80,", b",-37.80,", "the price is negative"),
        ("taobao", "raw_sample.csv", b",1,0\n", b",1,2\n", "line 2: clk is neither 0 nor 1"),
        ("taobao", "raw_sample.csv", b"\n7,", b"\n-7,", "line 2: user is not within 32 bits"),
    ],
)
def test_it_is_named(recipe: str, file: str, old: bytes, new: bytes, named: str, tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name, content in FILES[recipe].items():
        (source / name).write_bytes(content.replace(old, new, 1) if name == file else content)
    given = source / file if recipe in ("avazu", "my_data") else source
    recipe = recipe.partition(" ")[0]
    with pytest.raises(DataError) as caught:
        prepare(recipe, given, output)
    assert file in str(caught.value)
    assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]
    assert prepare(recipe, given, output, max_bad_rows=1).bad_rows == 1
