"""The MovieLens 1M recipe."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.facts import inspect
from persia_cli.data.hashing import text_id
from persia_cli.data.recipe import PrepareOptions, PrepareReport, load_recipe
from persia_cli.errors import DataError

RATINGS = b"1::1193::5::978300760\n2::661::3::978302109\n1::914::4::978301968\n"
USERS = b"1::F::1::10::48067\n2::M::56::16::98107-1474\n"


def prepare(source: Path, output: Path, **options: int) -> PrepareReport:
    return load_recipe("movielens_1m").prepare(source, output, PrepareOptions(**options), lambda done, total: None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "ratings.dat").write_bytes(RATINGS)
    (folder / "users.dat.gz").write_bytes(gzip.compress(USERS))
    return folder


def test_values_are_what_the_readme_says(source: Path, tmp_path: Path) -> None:
    report = prepare(source, tmp_path / "out")
    assert (report.rows, report.bad_rows) == (3, 0)
    first, second, third = pq.read_table(report.files[0]).to_pylist()
    woman, man = text_id("gender", "F"), text_id("gender", "M")
    assert first == {
        "label": 1, "rating": 5, "timestamp": 978300760, "user": 1, "movie": 1193, "gender": woman, "age": 1,
        "occupation": 10,
    }  # fmt: skip
    assert (second["label"], second["gender"], second["age"], second["occupation"]) == (0, man, 56, 16)
    assert (third["label"], third["movie"], third["gender"]) == (1, 914, woman)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("ratings.dat", b"1::1193", b"x::1193", "ratings.dat line 1: user is not a number"),
        ("ratings.dat", b"::5::", b"::6::", "ratings.dat line 1: the rating is not 1 to 5"),
        ("ratings.dat", b"1::1193", b"3::1193", "ratings.dat line 1: the user is not in users.dat"),
        ("ratings.dat", b"::978300760", b"", "ratings.dat line 1: 5 columns where 7 belong"),
        ("users.dat.gz", b"::M::", b"::X::", "users.dat.gz line 2: the gender is neither F nor M"),
    ],
)
def test_damaged_rows_end_the_recipe_unless_allowed(
    source: Path, tmp_path: Path, file: str, old: bytes, new: bytes, reason: str
) -> None:
    whole = {"ratings.dat": RATINGS, "users.dat.gz": USERS}[file].replace(old, new, 1)
    (source / file).write_bytes(gzip.compress(whole) if file.endswith(".gz") else whole)
    with pytest.raises(DataError, match=reason):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert prepare(source, tmp_path / "out", max_bad_rows=2).rows == 2


def test_both_files_are_needed(source: Path, tmp_path: Path) -> None:
    (source / "users.dat.gz").unlink()
    with pytest.raises(DataError, match=r"has neither users\.dat nor users\.dat\.gz; give the folder"):
        prepare(source, tmp_path / "out")


def test_the_real_ratings_make_the_job_of_the_readme(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "ml-1m" / "ratings.parquet").exists():
        pytest.skip("no ml-1m/ratings.parquet among the real data")
    ratings = pq.read_table(real_data / "ml-1m" / "ratings.parquet")
    source = tmp_path / "ml-1m"
    source.mkdir()
    (source / "users.dat").write_bytes((real_data / "ml-1m" / "users.dat").read_bytes())
    names = ["user_id", "movie_id", "rating", "timestamp"]
    options = csv.WriteOptions(include_header=False, delimiter=":")
    csv.write_csv(ratings.select(names), source / "single", options)
    (source / "ratings.dat").write_bytes((source / "single").read_bytes().replace(b":", b"::"))
    assert prepare(source, tmp_path / "out").rows == 1_000_209

    run = compose_run(["conf=movielens_1m", f"dataset.path='{tmp_path / 'out'}'"])
    facts = inspect(run.dataset)
    assert (facts.train_rows, facts.eval_rows, facts.stand_in) == (800_168, 200_041, False)
    made = pq.read_table(tmp_path / "out" / "movielens_1m.parquet")
    assert np.array_equal(made.column("label").to_numpy(), ratings.column("rating").to_numpy() >= 4)
    assert len(made.column("movie").unique()) == 3706
