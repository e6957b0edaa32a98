"""The MovieLens recipe, on the layouts of three releases."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.ids import text_id
from persia_cli.errors import DataError
from tests.support.prepared import prepare

RELEASES: dict[str, dict[str, bytes]] = {
    "100k": {
        "u.data": b"196\t242\t3\t881250949\n2\t302\t4\t891717742\n196\t377\t5\t878887116\n",
        "u.user": b"2|53|F|other|94043\n196|24|M|technician|V1G4L\n",
    },
    "1m": {
        "ratings.dat": b"1::1193::5::978300760\n2::661::3::978302109\n1::914::4::978301968\n",
        "users.dat": b"1::F::1::10::48067\n2::M::56::16::98107-1474\n",
    },
    "25m": {
        "ratings.csv": b"userId,movieId,rating,timestamp\n1,296,5.0,1147880044\n1,306,3.5,1147868817\n"
        b"3,296,0.5,1439474476\n",
        "movies.csv": b"movieId,title,genres\n296,Pulp Fiction (1994),Comedy|Crime\n"
        b'306,"Three Colors: Red (""Rouge""), 1994",(no genres listed)\n',
    },
}


def write(folder: Path, release: str, packed: str = "") -> Path:
    folder.mkdir()
    for name, content in RELEASES[release].items():
        if name == packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def test_a_hundred_thousand(tmp_path: Path) -> None:
    report = prepare("movielens", write(tmp_path / "ml-100k", "100k", packed="u.data"), tmp_path / "out")
    first, second, third = pq.read_table(report.files[0]).to_pylist()
    assert first == {
        "label": 0, "rating": 3.0, "timestamp": 881250949, "user": 196, "movie": 242, "age": 24,
        "gender": text_id("gender", "M"), "occupation": text_id("occupation", "technician"),
    }  # fmt: skip
    assert (second["label"], second["gender"], second["age"]) == (1, text_id("gender", "F"), 53)
    assert third["label"] == 1


def test_a_million(tmp_path: Path) -> None:
    report = prepare("movielens", write(tmp_path / "ml-1m", "1m", packed="users.dat"), tmp_path / "out")
    first, second, third = pq.read_table(report.files[0]).to_pylist()
    assert first == {
        "label": 1, "rating": 5.0, "timestamp": 978300760, "user": 1, "movie": 1193,
        "gender": text_id("gender", "F"), "age": 1, "occupation": 10,
    }  # fmt: skip
    assert (second["label"], second["gender"], second["age"], second["occupation"]) == (
        0,
        text_id("gender", "M"),
        56,
        16,
    )
    assert (third["label"], third["movie"]) == (1, 914)


def test_25_million(tmp_path: Path) -> None:
    report = prepare("movielens", write(tmp_path / "ml-25m", "25m"), tmp_path / "out")
    first, second, third = pq.read_table(report.files[0]).to_pylist()
    crime = [text_id("genres", "Comedy"), text_id("genres", "Crime")]
    assert first == {
        "label": 1, "rating": 5.0, "timestamp": 1147880044, "user": 1, "movie": 296, "genres": crime,
    }  # fmt: skip
    assert (second["label"], second["rating"], second["genres"]) == (0, 3.5, [text_id("genres", "(no genres listed)")])
    assert (third["label"], third["genres"]) == (0, crime)


@pytest.mark.parametrize("release", RELEASES)
def test_each_is_what_its_configuration_expects(tmp_path: Path, release: str) -> None:
    report = prepare("movielens", write(tmp_path / "raw", release), tmp_path / "made")
    own = compose_run([f"conf=movielens_{release}", f"dataset.path={report.dataset.parent}"])
    described = compose_run([f"conf=movielens_{release}", f"dataset={report.dataset}"])
    facts = inspect(own.dataset)
    assert (facts.train_rows, facts.eval_rows) == (3, 0)
    assert inspect(described.dataset).sparse == facts.sparse


def test_both_files_are_needed(tmp_path: Path) -> None:
    source = write(tmp_path / "ml-1m", "1m")
    (source / "users.dat").unlink()
    with pytest.raises(DataError, match=r"has neither users\.dat nor users\.dat\.gz; give the folder"):
        prepare("movielens", source, tmp_path / "out")
    with pytest.raises(DataError, match=r"has none of u\.data, ratings\.dat, ratings\.csv; give the folder"):
        prepare("movielens", tmp_path / "nowhere", tmp_path / "out")


def test_ratings_may_be_parquet(tmp_path: Path) -> None:
    lines = [line.split(b"::") for line in RELEASES["1m"]["ratings.dat"].split()]
    columns = [pa.array([int(value) for value in column], pa.int32()) for column in zip(*lines, strict=True)]
    ratings = pa.table(columns, ["user_id", "movie_id", "rating", "timestamp"])
    source = write(tmp_path / "ml-1m", "1m")
    [text] = prepare("movielens", source, tmp_path / "text").files
    (source / "ratings.dat").unlink()
    pq.write_table(ratings, source / "ratings.parquet")
    [made] = prepare("movielens", source, tmp_path / "made").files
    assert pq.read_table(made).equals(pq.read_table(text))
    halves = ratings.set_column(2, "rating", [pa.array([4.5, 3.5, 0.5])])
    pq.write_table(halves, source / "ratings.parquet")
    made_of_halves = pq.read_table(prepare("movielens", source, tmp_path / "halves").files[0])
    assert made_of_halves.column("rating").to_pylist() == [4.5, 3.5, 0.5]
    (source / "ratings.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"ratings\.parquet: cannot be read as Parquet of MovieLens ratings"):
        prepare("movielens", source, tmp_path / "wrong")


def test_the_real_ratings_make_the_job_of_the_readme(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "ml-1m" / "ratings.parquet").exists():
        pytest.skip("no ml-1m/ratings.parquet among the real data")
    report = prepare("movielens", real_data / "ml-1m", tmp_path / "out")
    assert report.rows == 1_000_209
    facts = inspect(compose_run(["conf=movielens_1m", f"dataset.path={tmp_path / 'out'}"]).dataset)
    assert (facts.train_rows, facts.eval_rows, facts.stand_in) == (800_168, 200_041, False)
    made = pq.read_table(report.files[0])
    stars = pq.read_table(real_data / "ml-1m" / "ratings.parquet", columns=["rating"]).column("rating").to_numpy()
    assert np.array_equal(made.column("label").to_numpy(), stars >= 4)
    assert len(made.column("movie").unique()) == 3706
