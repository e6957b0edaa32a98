"""Texts of requests have the values that training reads in the same fields of its CSV files."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema import Run
from persia_cli.data.read.decode import decode_dense, decode_ids
from persia_cli.data.read.scan import scan
from persia_cli.data.read.source import open_source
from persia_cli.observe.kept_samples import csv_fields
from persia_cli.serving.description import ModelInput
from persia_cli.serving.fields import RequestFields, read_fields, write_fields
from persia_cli.serving.http.requests import RequestReader
from persia_cli.serving.sample_columns import SampleColumns
from tests.support.asgi import binary, tensor
from tests.support.runs import make_run

ROWS = [
    {"click": "1", "city": "", "code": " 7", "user": "7 ", "Age": " 69", "paid": "true", "wide": "1.5"},
    {"click": "0", "city": "NA", "code": "8 ", "user": "1000", "Age": "NA", "paid": "", "wide": " 9"},
    {"click": "0", "city": " Rome", "code": "", "user": "NA", "Age": "", "paid": "False", "wide": "NA"},
    {"click": "1", "city": "7", "code": "-3", "user": " -5 ", "Age": "4.5\t", "paid": "TRUE", "wide": "-2"},
    {"click": "1", "city": " NA", "code": "NA", "user": "", "Age": "nan", "paid": "NA", "wide": ""},
]
"""Null markers, blanks, and numbers in several formats."""
SPARSE: list[Any] = [
    "city",
    {"name": "code", "ids": "text", "missing_id": 5},
    {"name": "user", "pooling": "mean", "max_length": 2, "missing_id": 6},
    {"name": "wide", "buckets": [0.0, 1.5]},
    {"name": "where", "column": "city", "missing_id": 9},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ("city", "code", "user", "wide", "Age", "paid")}
LISTS = frozenset({"user"})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    return run_of(tmp_path / "data.csv", {"kind": "predict"})


def run_of(path: Path, split: dict[str, Any] | None = None) -> Run:
    declared = {"path": str(path), "dense": ["Age", "paid"], "fill": -1.0, "csv": {"nulls": ["", "NA"]}}
    declared |= {"split": split or {"kind": "every", "n": 5}, "labels": ["click"], "shuffle": False}
    return make_run(SPARSE, dataset={**declared, "sparse": SPARSE})


def fields_of(run: Run) -> RequestFields:
    found = scan(run.dataset)
    return RequestFields.of(found.settled, LISTS, csv=csv_fields(found))


def lists(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "user": [[each] for each in columns["user"]]}


def by_rows(columns: dict[str, Any], reader: RequestReader) -> Any:
    whole = lists(columns)
    rows = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
    return reader.rows(json.dumps({"instances": rows}).encode()).columns


def tensors(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [tensor(name, "BYTES", values, [5, 1] if name == "user" else [5]) for name, values in columns.items()]


def by_columns(columns: dict[str, Any], reader: RequestReader) -> Any:
    return reader.infer(json.dumps({"inputs": tensors(columns)}).encode(), None).columns


def by_bytes(columns: dict[str, Any], reader: RequestReader) -> Any:
    body, headers = binary(tensors(columns))
    return reader.infer(body, headers["inference-header-content-length"].encode()).columns


WAYS: dict[str, Callable[[dict[str, Any], RequestReader], Any]] = {
    "lists": lambda columns, reader: lists(columns),
    "arrow": lambda columns, reader: {name: pa.array(values) for name, values in lists(columns).items()},
    "rows": by_rows,
    "columns": by_columns,
    "bytes": by_bytes,
}


@pytest.mark.parametrize("way", WAYS)
def test_fields_of_the_files_are_the_same_in_requests(way: str, run: Run, tmp_path: Path) -> None:
    source = open_source(run.dataset, "eval", 0)
    expected = source.read(0, 0, source.rows)
    source.close()
    write_fields(tmp_path, fields_of(run))
    fields = read_fields(tmp_path)
    reader = RequestReader([ModelInput(*each) for each in fields.inputs()], [], 10)
    given = WAYS[way](COLUMNS, reader)
    batch = fields.batch(given)
    np.testing.assert_array_equal(batch.dense, expected.dense)
    np.testing.assert_array_equal(batch.ids, expected.ids)
    np.testing.assert_array_equal(batch.offsets, expected.offsets)
    require_same_log(fields, given, batch)


def require_same_log(fields: RequestFields, given: Any, batch: Any) -> None:
    """The log of requests is read as Parquet, which has no null markers, and has the same samples."""
    made = SampleColumns(fields)
    table = pa.Table.from_arrays(made.arrays(given, 5), schema=made.schema())
    ids = [
        decode_ids(table.column(each.column_name), each, each.name in fields.lists, "the log", None, Counter()).values
        for each in fields.sparse
    ]
    np.testing.assert_array_equal(np.concatenate(ids), batch.ids)
    for number, each in enumerate(fields.dense):
        values = decode_dense(table.column(each.name), each, "the log", None, fields.fill, Counter())
        np.testing.assert_array_equal(values[:, 0], batch.dense[:, number])


def test_missing_values_are_mixed_with_numbers(run: Run) -> None:
    """Of programs that send numbers as numbers, and missing values as an empty text."""
    fields = fields_of(run)
    mixed = lists(COLUMNS) | {"Age": [69, "NA", "", 4.5, None], "code": [7, 8, "", -3, "NA"]}
    np.testing.assert_array_equal(fields.batch(mixed).ids, fields.batch(lists(COLUMNS)).ids)
    np.testing.assert_array_equal(fields.batch(mixed).dense, fields.batch(lists(COLUMNS)).dense)


def test_texts_of_other_data_have_no_null_markers(run: Run, tmp_path: Path) -> None:
    table = pa.table({"click": [0, 1] * 5, "city": ["", "NA"] * 5, "Age": [1.0] * 10, "paid": [True] * 10})
    table = table.append_column("code", pa.array(["a"] * 10)).append_column("user", pa.array([1] * 10))
    pq.write_table(table.append_column("wide", pa.array([1.0] * 10)), tmp_path / "other.parquet")
    assert csv_fields(scan(run_of(tmp_path / "other.parquet").dataset)) is None
    known = csv_fields(scan(run.dataset))
    assert known is not None
    assert known.nulls == ("", "NA")
    assert known.columns == {
        "city": "text", "code": "number", "user": "integer", "wide": "number", "Age": "number", "paid": "boolean",
    }  # fmt: skip
