"""Scores and the columns kept with them: in the order of the data, of any type, complete or absent."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read import scores_file
from persia_cli.data.read.scores_file import ScoresFile, claimed_scores
from persia_cli.errors import DataError, DiskError, UserError
from tests.support.full_disk import small_disk

ROWS = {"b.parquet": (40, 63), "a.parquet": (0, 40)}
"""Rows of each file, by the numbers that they bear; files are read by name."""


def samples(start: int, stop: int) -> dict[str, Any]:
    numbers = list(range(start, stop))
    return {
        "d": pa.array(numbers, pa.float64()),
        "text": pa.array([None if n % 7 == 3 else f"row {n}, “{n}”" for n in numbers], pa.string()),
        "kind": pa.array([f"k{n % 3}" for n in numbers], pa.string()).dictionary_encode(),
        "list": pa.array([list(range(n % 4)) for n in numbers], pa.list_(pa.int32())),
        "when": pa.array([n * 86_400_000 for n in numbers], pa.timestamp("ms")),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files in groups of 9 rows, and one without rows."""
    data = tmp_path / "data"
    data.mkdir()
    for name, (start, stop) in (ROWS | {"empty.parquet": (0, 0)}).items():
        pq.write_table(pa.table(samples(start, stop)), data / name, row_group_size=9)
    return data


def scores_of(folder: Path, output: Path, *keep: str, links: Any = None) -> ScoresFile:
    """Begin the scores of the folder, with logits; `links` has the labels."""
    links = links or {"y": "logistic"}
    own = {"path": str(folder), "labels": list(links), "dense": ["d"], "split": {"kind": "predict"}}
    dataset = ParquetDataset.model_validate({"kind": "parquet", **own})
    return ScoresFile(dataset, output, links, keep, True)


def made_up_logits(rows: int, tasks: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(0.0, 4.0, (rows, tasks)).astype(np.float32)


def write(file: ScoresFile, logits: np.ndarray[Any, Any], portion: int) -> None:
    for first in range(0, len(logits), portion):
        file.add(logits[first : first + portion])
    file.publish()


@pytest.mark.parametrize(("portion", "group_rows"), [(1, 10), (8, 1), (100, 2**17)])
def test_kept_columns_stay_with_their_scores(
    folder: Path, tmp_path: Path, portion: int, group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores_file, "GROUP_ROWS", group_rows)
    logits = made_up_logits(63, 2)
    file = scores_of(
        folder, tmp_path / "s.parquet", "text", "list", "kind", "when", links={"y": "logistic", "z": "logistic"}
    )
    write(file, logits, portion)
    assert file.rows == 63
    written = pq.read_table(tmp_path / "s.parquet")
    scores = ["y_probability", "y_logit", "z_probability", "z_logit"]
    assert written.column_names == ["text", "list", "kind", "when", *scores]
    for name in ("text", "list", "when"):
        assert written.column(name).equals(pa.chunked_array([samples(0, 63)[name]]))
    assert written.column("kind").to_pylist() == [f"k{n % 3}" for n in range(63)]
    for task, label in enumerate(("y", "z")):
        assert written.column(f"{label}_logit").to_numpy().tobytes() == logits[:, task].tobytes()
        expected = 1.0 / (1.0 + np.exp(-logits[:, task].astype(np.float64)))
        np.testing.assert_allclose(written.column(f"{label}_probability").to_numpy(), expected, rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "s.parquet"]


def test_numbers_have_one_column_of_predictions_each(folder: Path, tmp_path: Path) -> None:
    logits = made_up_logits(63, 3)
    links = {"stars": "identity", "y": "logistic", "visits": "exp"}
    output = tmp_path / "s.parquet"
    write(scores_of(folder, output, links=links), logits, 10)
    written = pq.read_table(output)
    assert written.column_names == ["stars_prediction", "y_probability", "y_logit", "visits_prediction"]
    np.testing.assert_array_equal(written.column("stars_prediction").to_numpy(), logits[:, 0])
    np.testing.assert_allclose(written.column("visits_prediction").to_numpy(), np.exp(logits[:, 2]), rtol=1e-6)


def test_csv(folder: Path, tmp_path: Path) -> None:
    logits = made_up_logits(63)
    write(scores_of(folder, tmp_path / "s.csv", "text", "d"), logits, 10)
    written = csv.read_csv(tmp_path / "s.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True))
    assert written.column_names == ["text", "d", "y_probability", "y_logit"]
    assert written.column("text").to_pylist() == samples(0, 63)["text"].to_pylist()
    found = written.column("y_probability").to_numpy().astype(np.float32)
    np.testing.assert_allclose(found, 1.0 / (1.0 + np.exp(-logits[:, 0])), rtol=1e-5)


def test_no_rows_make_a_file_without_rows(folder: Path, tmp_path: Path) -> None:
    for name in ROWS:
        (folder / name).unlink()
    scores_of(folder, tmp_path / "s.parquet", "text").publish()
    written = pq.read_table(tmp_path / "s.parquet")
    assert (written.num_rows, written.column_names) == (0, ["text", "y_probability", "y_logit"])
    assert written.schema.field("text").type == pa.string()


def test_what_is_not_published_leaves_nothing_and_harms_nothing(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "s.parquet"
    output.write_text("of old")
    with claimed_scores(output):
        file = scores_of(folder, output)
        file.add(made_up_logits(10))
        assert output.read_text() == "of old"
        file.discard()
    assert (output.read_text(), len(list(tmp_path.iterdir()))) == ("of old", 2)
    with claimed_scores(output):
        write(scores_of(folder, output), made_up_logits(63), 63)
    assert pq.read_table(output).num_rows == 63
    assert len(list(tmp_path.iterdir())) == 2


def test_one_process_at_a_time_writes_a_file(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "s.parquet"
    with claimed_scores(output):
        file = scores_of(folder, output)
        file.add(made_up_logits(63))
        with pytest.raises(UserError, match=r"s\.parquet is being written by another persia predict; wait"):
            claimed_scores(output).__enter__()
        file.publish()
    assert pq.read_table(output).num_rows == 63
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "s.parquet"]


def test_remains_of_a_killed_process_do_not_disturb(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "s.parquet"
    program = f"""
import os
from pathlib import Path
from persia_cli.data.read.scores_file import claimed_scores
output = Path({str(output)!r})
with claimed_scores(output):
    output.with_name("s.parquet.part").write_bytes(bytes(99))
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert (tmp_path / "s.parquet.part").stat().st_size == 99
    with claimed_scores(output):
        write(scores_of(folder, output), made_up_logits(63), 63)
    assert pq.read_table(output).num_rows == 63
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "s.parquet"]


def test_a_full_disk_is_named(folder: Path) -> None:
    with small_disk(2**17) as disk, claimed_scores(disk / "s.parquet"):
        file = scores_of(folder, disk / "s.parquet")
        file.add(made_up_logits(100_000))
        with pytest.raises(DiskError, match=rf"^disk full: cannot write {disk}/s\.parquet; free space or choose"):
            file.publish()
        file.discard()


@pytest.mark.parametrize(
    ("name", "keep", "sentence"),
    [
        ("s.parquet", ["txt"], r"a.parquet: there is no column txt to keep; did you mean text\?"),
        ("s.parquet", ["text", "d", "text"], "s.parquet would have two columns text"),
        ("s.parquet", ["kind"], r"b.parquet: .*kind .*incompatible types"),
        ("s.csv", ["text", "list"], "column list is list<.*, which CSV cannot hold; write .parquet instead"),
        ("s.json", [], "end the name in .parquet or .csv"),
        ("none/s.parquet", [], "none/s.parquet"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    folder: Path, tmp_path: Path, name: str, keep: list[str], sentence: str
) -> None:
    pq.write_table(pa.table(samples(40, 63) | {"kind": pa.array(range(23))}), folder / "b.parquet")
    with pytest.raises((UserError, DataError), match=sentence):
        scores_of(folder, tmp_path / name, *keep)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_kept_column_has_the_widest_type_of_all_files(folder: Path, tmp_path: Path) -> None:
    for name, kind in (("a", pa.null()), ("b", pa.int64()), ("empty", pa.int16())):
        rows = pq.read_metadata(folder / f"{name}.parquet").num_rows
        values = [None if name == "a" else 2**40 + n for n in range(rows)]
        columns = {"d": pa.array([0.0] * rows, pa.float64()), "n": pa.array(values, kind)}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    write(scores_of(folder, tmp_path / "s.parquet", "n"), made_up_logits(63), 63)
    numbers = pq.read_table(tmp_path / "s.parquet").column("n")
    assert numbers.type == pa.int64()
    assert numbers.to_pylist() == [None] * 40 + [2**40 + n for n in range(23)]
