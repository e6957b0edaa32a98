"""CSV and JSON Lines that cannot be read: the error names the flaw and the line of the file."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.cache import CACHE
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from tests.support.samples import read
from tests.support.text_files import dataset, rows, write_csv, write_jsonl

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_bad_rows_are_counted_and_named_and_too_many_refused(tmp_path: Path, name: str) -> None:
    table = rows()[:20]
    if name == "a.csv":
        write_csv(tmp_path / name, [{**row, "c": "x"} for row in table])
        lines = (tmp_path / name).read_text().splitlines()
        lines[3], lines[7] = "1,2", "1,2,3,4,5,6"
        expected = ("line 4: 2 fields where there are 5 columns: 1,2", "line 8: 6 fields where there are 5 columns")
    else:
        write_jsonl(tmp_path / name, table)
        lines = (tmp_path / name).read_text().splitlines()
        lines[3], lines[7] = "{broken", "[1]"
        expected = ("line 4: not a JSON object: {broken", "line 8: not a JSON object: [1]")
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        inspect(dataset(tmp_path))
    told = str(caught.value)
    assert told.startswith("2 rows cannot be read, and dataset.max_bad_rows=0 may be left out")
    assert all(f"{tmp_path / name} {row}" in told for row in expected)
    facts = inspect(dataset(tmp_path, max_bad_rows=2))
    assert facts.train_rows + facts.eval_rows == 18
    assert ", 2 unreadable rows left out" in facts.source


HARD = 'y,d,c\n\n1,1,"a\nb ""quoted"""\n\n0,2,x\n1,2\n\r\n0,3,"c\r\nd"\n1,,late\n'
"""Its last row begins in line 11: there are blank lines, fields of two lines and a row that cannot be read."""


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_lines_of_a_csv_are_those_of_the_file(tmp_path: Path, name: str) -> None:
    text = HARD.encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(DataError, match=f"{name} line 7: 2 fields where there are 3 columns: 1,2"):
        inspect(dataset(tmp_path))
    data = dataset(tmp_path, fill=None, max_bad_rows=1, split={"kind": "files", "train": [name]})
    assert "values of dense column d are unusable, the first is null or NaN in line 11;" in read(data, "train").why


def test_lines_of_json_are_those_of_the_file(tmp_path: Path) -> None:
    good = '{"y": 1, "d": 1, "c": 1}\n'
    file = tmp_path / "a.jsonl"
    keys: dict[str, Any] = {"fill": None, "max_bad_rows": 1, "split": {"kind": "files", "train": ["*"]}}
    file.write_text(f'{good}\n[1]\n{good}{good}{{"y": 1, "d": null, "c": 1}}\n')
    assert "the first is null or NaN in line 6;" in read(dataset(tmp_path, **keys), "train").why
    file.write_text(f'{good}\n{good}{good}{{"y": 1, "d": 1, "c": "x"}}\n')
    with pytest.raises(DataError, match=r"changed from number to string in line 5\)"):
        inspect(dataset(tmp_path, **keys))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "y,d,c\n", "the files hold a header alone, and no rows; give files with rows"),
        ("a.csv", b"y,d,c\n1,2,\xff\xfe\n", "line 2: field 3 is not UTF-8; convert it"),
        ("a.csv", b"y,\xfc,c\n1,2,3\n", "the file is not UTF-8 (in its header); convert it"),
        ("a.csv", "y,d,c\n1,2,x\n".encode("utf-16"), "(it begins as UTF-16 does); convert it, as iconv -f UTF-16 -t"),
        ("a.csv", "y,d,c\n1,2,x\n".encode("utf-16-be"), "convert it, as iconv -f UTF-16BE -t UTF-8 does"),
        ("a.jsonl", '{"y": 1}'.encode("utf-16-le"), "convert it, as iconv -f UTF-16LE -t UTF-8 does"),
        ("a.csv", "\n\n\n", "the file has no header, only blank lines"),
        ("a.csv", "y\td\tc\n1\t2\tx\n", "another character seems to divide its columns; set dataset.csv.delimiter=tab"),
        ("a.tsv", "y, d, c\n1,2,x\n", "another character seems to divide its columns; set dataset.csv.delimiter=','"),
        ("a.csv", "y,d,c\n1,abc,x\n", "column d holds strings, but a dense feature is a number"),
        ("a.csv", "y,e,c\n1,2,x\n", "there is no column d (dense column of dataset.dense)"),
        (
            "a.csv",
            "1,0.5,x\n0,2,z\n",
            "the first line looks like data (1, 0.5, x); name the columns: 'dataset",
        ),
        ("a.jsonl", '[{"y": 1}, {"y": 0}]', "this is a JSON array, and JSON Lines are read"),
        ("a.csv.gz", "y,d,c\n1,2,x\n", "cannot be"),
        ("a.jsonl", '{"y": 1, "d": 1, "c": 1}\n{"y": 1, "d": 1, "c": "x"}\n', "a column has values of several types"),
    ],
)
def test_unreadable_text_is_reported(tmp_path: Path, name: str, text: str | bytes, told: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        inspect(dataset(tmp_path))
    assert told in str(caught.value)
    assert name in str(caught.value) or "no rows" in told


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "a.csv", rows())
    monkeypatch.setenv(CACHE, str(tmp_path / "a.csv" / "no"))
    with pytest.raises(DataError, match=r"cannot be written .* another folder by PERSIA_CACHE_DIR"):
        inspect(dataset(tmp_path / "a.csv"))


@pytest.mark.parametrize("kind", ["predict", "eval"])
def test_a_column_of_the_model_that_other_data_lack_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.csv").write_text("y,D,e\n1,2,x\n")
    with pytest.raises(DataError) as caught:
        inspect(dataset(tmp_path, split={"kind": kind}, weight="w"))
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/a.csv: there is no column w, which the model was trained with (dataset.weight); add it, or "
        "evaluate without it: dataset.weight=null",
        f"{tmp_path}/a.csv: there is no column d, which the model was trained with (dataset.dense); rename D, if that "
        "is it",
        f"{tmp_path}/a.csv: there is no column c, which the model was trained with (dataset.sparse); columns there "
        "are: y, D, e",
    ]


def test_a_text_column_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,d,c\n1,1,1\n0,2,2\n")
    with pytest.raises(DataError, match=r"dataset.csv.text=\['nope'\]"):
        inspect(dataset(tmp_path, csv={"text": ["nope"]}))


@pytest.mark.parametrize(
    "line",
    [
        b'{"y": 1, "d": 1, "c": 1}{"y": 1, "d": 1, "c": 1}',
        b'{"y": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"y": 1, "d": 2, "c": "\xe9"}',
    ],
    ids=["two objects", "nested too deeply", "not UTF-8"],
)
def test_a_line_of_json_that_is_no_object_is_named(tmp_path: Path, line: bytes) -> None:
    good = b'{"y": 1, "d": 1, "c": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(good + line + b"\n" + good)
    with pytest.raises(DataError, match=r"line 2: not a JSON object"):
        inspect(dataset(tmp_path))


def column_of(folder: Path, values: list[str], **keys: Any) -> ParquetDataset:
    """A CSV of labels and the dense column d."""
    delimiter = keys.get("csv", {}).get("delimiter", ",")
    lines = ["y,d", *(f"{number % 2},{value}" for number, value in enumerate(values))]
    (folder / "a.csv").write_text("".join(line.replace(",", delimiter, 1) + "\n" for line in lines))
    return dataset(folder, sparse=[], split={"kind": "every", "n": 2}, **keys)


def test_the_remedy_of_texts_among_numbers_is_named_and_helps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"numbers with a comma, such as '0,5'; write them with a point"):
        inspect(column_of(tmp_path, ["0,5", "1,25", "3", "-0,1"], csv={"delimiter": ";"}))
    values = ["0.5", "NULL", "3", r"\N", "1e3", ""]
    with pytest.raises(DataError, match=r"dataset\.csv\.nulls=\['', 'NULL', '\\N'\]"):
        inspect(column_of(tmp_path, values))
    assert inspect(column_of(tmp_path, values, csv={"nulls": ["", "NULL", r"\N"]})).train_rows == 3
    with pytest.raises(DataError, match=r"list it under dataset\.sparse"):
        inspect(column_of(tmp_path, ["red", "blue", "green"]))
