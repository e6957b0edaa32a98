"""Columns that are not what they were meant to be: the sentence names the remedy, and the remedy helps."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.facts import inspect
from persia_cli.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("cache")


def dataset(path: Path, **keys: Any) -> ParquetDataset:
    usual = {"kind": "parquet", "path": str(path), "labels": ["y"], "dense": ["x"], "split": {"kind": "every", "n": 2}}
    return ParquetDataset.model_validate({**usual, **keys})


def csv(folder: Path, values: list[str], delimiter: str = ",") -> Path:
    rows = [["y", "x"], *([str(number % 2), value] for number, value in enumerate(values))]
    (folder / "a.csv").write_text("".join(delimiter.join(row) + "\n" for row in rows))
    return folder / "a.csv"


def test_semicolons_and_a_decimal_comma(tmp_path: Path) -> None:
    path = csv(tmp_path, ["0,5", "1,25", "3", "-0,1"], ";")
    with pytest.raises(DataError, match=r"its header has one column; set dataset\.csv\.delimiter=';'"):
        inspect(dataset(path))
    with pytest.raises(DataError, match=r"numbers with a comma, such as '0,5'; write them with a point"):
        inspect(dataset(path, csv={"delimiter": ";"}))


def test_a_few_texts_among_numbers(tmp_path: Path) -> None:
    path = csv(tmp_path, ["0.5", "NULL", "3", r"\N", "1e3", ""])
    with pytest.raises(DataError, match=r"dataset\.csv\.nulls=\['', 'NULL', '\\N'\]"):
        inspect(dataset(path))
    assert inspect(dataset(path, csv={"nulls": ["", "NULL", r"\N"]}, fill=0.0)).train_rows == 3
    pq.write_table(pa.table({"y": [0, 1], "x": ["1", "NA"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the word 'NA'; write null in place of what stands for a missing value"):
        inspect(dataset(tmp_path / "a.parquet"))
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"list it under dataset\.sparse"):
        inspect(dataset(csv(tmp_path / "b", ["red", "blue", "green"])))


def test_null_without_quotes(tmp_path: Path) -> None:
    words = ["conf=adult_income", "dataset.csv.nulls=[NULL]"]
    with pytest.raises(ConfigError, match=r'write a text in quotes, such as "NULL"'):
        compose_run(words, [])


def test_fields_of_structs(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1], "x": [0.5, 1.0], "st": [{"a": 1}, {"a": 2}]}), tmp_path / "a.parquet")
    for sparse in ("st.a", "st", {"name": "u", "column": "st.a"}):
        with pytest.raises(DataError, match=r'SELECT \*, "st"\.a AS st_a'):
            inspect(dataset(tmp_path / "a.parquet", sparse=[sparse]))
