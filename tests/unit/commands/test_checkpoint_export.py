"""`persia checkpoint export` writes the rows that are there; `show` and `diff` print what they should."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.forge import MANIFEST, read_arrow, read_note, renew, write_arrow
from tests.support.saved_rows import made_up_rows
from tests.unit.checkpoint.made_up import write_sorted


@pytest.fixture
def rows() -> pd.DataFrame:
    return made_up_rows(300, 8, 9, ("a", "b"))


@pytest.fixture
def checkpoint(tmp_path: Path, rows: pd.DataFrame) -> Path:
    return write_sorted(tmp_path / "run", 9, rows, 3)


def of_table(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    return rows[rows["table"] == name].sort_values("id")


def test_parquet_has_every_row_of_the_table(persia, tmp_path: Path, checkpoint: Path, rows: pd.DataFrame) -> None:
    ended = persia("checkpoint", "export", str(checkpoint), "--table", "a", "-o", "a.parquet", "--last-used")
    assert ended.code == 0, ended.err
    found = pd.read_parquet(tmp_path / "a.parquet").sort_values("id")
    wanted = of_table(rows, "a")
    assert list(found.columns) == ["id", "last_used", "vector"]
    assert found["id"].tolist() == wanted["id"].tolist()
    assert found["last_used"].tolist() == wanted["last_used"].tolist()
    np.testing.assert_array_equal(np.stack(found["vector"]), np.stack(wanted["embedding"]))
    assert f"{len(wanted)} rows of step 9" in ended.err


def test_csv_has_a_column_for_each_value(persia, tmp_path: Path, checkpoint: Path, rows: pd.DataFrame) -> None:
    assert persia("checkpoint", "export", str(checkpoint), "--table", "b", "-o", "b.csv").code == 0
    found = pd.read_csv(tmp_path / "b.csv", dtype={"id": np.uint64}).sort_values("id")
    assert list(found.columns) == ["id", *(f"vector_{place}" for place in range(8))]
    wanted = of_table(rows, "b")
    assert found["id"].tolist() == wanted["id"].tolist()
    np.testing.assert_array_equal(found.iloc[:, 1:].to_numpy(np.float32), np.stack(wanted["embedding"]))


def test_a_file_is_replaced_only_on_request_and_by_a_whole_one(persia, tmp_path: Path, checkpoint: Path) -> None:
    words = ("checkpoint", "export", str(checkpoint), "--table", "a", "-o", "a.csv")
    (tmp_path / "a.csv").write_text("mine")
    ended = persia(*words)
    assert (ended.code, (tmp_path / "a.csv").read_text()) == (2, "mine")
    assert "--overwrite" in ended.err
    path = sorted((checkpoint / "embeddings").iterdir())[-1]
    table = read_arrow(path)
    write_arrow(path, table.take([1, 0, *range(2, table.num_rows)]))
    renew(checkpoint)
    before = sorted(tmp_path.iterdir())
    ended = persia(*words, "--overwrite")
    assert (ended.code, (tmp_path / "a.csv").read_text(), sorted(tmp_path.iterdir())) == (2, "mine", before)
    assert "not ordered by key" in ended.err
    write_arrow(path, table)
    renew(checkpoint)
    assert persia(*words, "--overwrite").code == 0
    assert (tmp_path / "a.csv").read_text().startswith('"id"')


@pytest.mark.parametrize(
    ("table", "output", "words"),
    [
        ("c", "c.csv", "there is no table c in the checkpoint; it has "),
        ("(dense)", "c.csv", "dense/dense.safetensors"),
        ("a", "a.txt", "must end with .parquet or .csv"),
        ("a", "nowhere/a.csv", "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_exported(persia, checkpoint: Path, table: str, output: str, words: str) -> None:
    ended = persia("checkpoint", "export", str(checkpoint), "--table", table, "-o", output)
    assert ended.code == 2
    assert words in ended.err


def test_show_names_tables_dense_weights_and_files(persia, checkpoint: Path, rows: pd.DataFrame) -> None:
    found = json.loads(persia("checkpoint", "show", str(checkpoint), "--json").out)
    counts = rows["table"].value_counts()
    assert {table["name"]: table["rows"] for table in found["tables"]} == counts.to_dict()
    assert (found["step"], found["rows"], found["dense"]) == (9, len(rows), {"w": [3]})
    note = read_note(checkpoint / MANIFEST)
    assert [file["xxh128"] for file in found["files"]] == [file["xxh128"] for file in note["files"]]
    assert found["nbytes"] == sum(file["nbytes"] for file in note["files"])
