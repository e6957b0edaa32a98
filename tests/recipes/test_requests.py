"""A request in the vocabulary of a source becomes, to the bit, the rows that its recipe makes of the source's files."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.prepare.recipe import PrepareReport, load_recipe
from persia_cli.data.read.raw_values import column_of_request
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.data.read.source import open_source
from persia_cli.serving.columns import columns_of
from persia_cli.serving.fields import RequestFields
from tests.recipes import test_movielens_recipe, test_taobao_recipe
from tests.support.prepared import prepare

Row = dict[str, Any]
TAOBAO = test_taobao_recipe


def scanned(report: PrepareReport) -> ParquetScan:
    dataset = compose_run([f"dataset={report.dataset}"]).dataset
    assert isinstance(dataset, ParquetDataset)
    return scan(dataset)


def table_of(report: PrepareReport) -> Any:
    return pa.concat_tables([pq.read_table(file) for file in report.files]).combine_chunks()


def require_equal(report: PrepareReport, rows: Sequence[Row], as_prepared: Sequence[str] = ()) -> None:
    """Compare all columns of requests with those of the files, and then what is made of them."""
    table = table_of(report)
    assert table.num_rows == len(rows)
    for raw in scanned(report).settled.raw:
        for column in raw.columns:
            given = pa.array([row.get(raw.field_of(column)) for row in rows])
            made, expected = column_of_request(raw, column, given), table.column(column).combine_chunks()
            assert made.to_pylist() == expected.to_pylist(), column
            assert made.type == expected.type or pa.types.is_integer(made.type), column
    require_same_samples(report, rows, as_prepared)


def require_same_samples(report: PrepareReport, rows: Sequence[Row], as_prepared: Sequence[str]) -> None:
    """Compare a request of all evaluation rows with the rows for training; some columns are prepared already."""
    found, table = scanned(report), table_of(report)
    lists = frozenset(each.name for each in found.settled.sparse if each.column_name in found.lists)
    fields = RequestFields.of(found.settled, lists)
    if "split" in table.column_names:
        chosen = np.flatnonzero(np.array(table.column("split").to_pylist()) == "eval")
    else:
        chosen = np.arange(4, len(rows), 5)
    columns = {name: table.column(name).to_pylist() for name in as_prepared}
    made = [rows[row] | {name: values[row] for name, values in columns.items()} for row in chosen]
    batch = fields.batch(columns_of(made, fields.names))
    source = open_source(found.settled.model_copy(update={"shuffle": False}), "eval", 0)
    assert source.rows == chosen.size > 0
    expected = source.read(0, 0, source.rows)
    source.close()
    np.testing.assert_array_equal(batch.dense.view(np.uint32), expected.dense.view(np.uint32))
    np.testing.assert_array_equal(batch.ids, expected.ids)
    np.testing.assert_array_equal(batch.offsets, expected.offsets)


def test_my_data(tmp_path: Path) -> None:
    file = load_recipe("my_data").folder / "purchases.csv"
    with file.open(newline="") as text:
        rows: list[Row] = list(csv.DictReader(text))
    for row in rows:
        row |= {"price": float(row["price"]), "age": float(row["age"]) if row["age"] else None}
        row["tags"] = row["tags"].split("|")
    require_equal(prepare("my_data", file, tmp_path / "out"), rows)


@pytest.mark.parametrize(("release", "file"), [("100k", "u.data"), ("1m", "ratings.dat"), ("25m", "ratings.csv")])
def test_movielens(tmp_path: Path, release: str, file: str) -> None:
    """On a few lines of each release; the fifth rating evaluates."""
    source = test_movielens_recipe.write(tmp_path / release, release)
    lines = (source / file).read_bytes()
    (source / file).write_bytes(lines + lines.splitlines(keepends=True)[-1] * 2)
    report = prepare("movielens", source, tmp_path / "out")
    table = pq.read_table(report.files[0])
    persons = {196: ("M", "technician"), 2: ("F", "other")} if release == "100k" else {1: ("F", 10), 2: ("M", 16)}
    films = {296: ["Comedy", "Crime"], 306: ["(no genres listed)"]}
    rows = [
        {"genres": films[row["movie"]]} if release == "25m"
        else dict(zip(("gender", "occupation"), persons[row["user"]], strict=True))
        for row in table.to_pylist()
    ]  # fmt: skip
    assert table.num_rows == 5
    require_equal(report, rows, ["user", "movie", *(["age"] if release != "25m" else [])])


def test_real_impressions_of_avazu(real_data: Path, tmp_path: Path) -> None:
    file = real_data / "avazu" / "avazu_first10k.csv.gz"
    with gzip.open(file, "rt", newline="") as text:
        rows: list[Row] = list(csv.DictReader(text))
    numbers = ["hour", "C1", "banner_pos", "device_type", "device_conn_type", *(f"C{n}" for n in range(14, 22))]
    for row in rows:
        row |= {name: int(row[name]) for name in numbers}
    require_equal(prepare("avazu", file, tmp_path / "out"), rows)


def test_real_impressions_of_criteo(real_data: Path, tmp_path: Path) -> None:
    file = real_data / "criteo" / "criteo_kaggle_mix.tsv.gz"
    names = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    with gzip.open(file, "rt") as text:
        rows = [dict(zip(names, line.rstrip("\n").split("\t"), strict=True)) for line in text]
    given: list[Row] = [
        {name: int(value) if name[0] == "I" and value else value or None for name, value in row.items()} for row in rows
    ]
    require_equal(prepare("criteo", file, tmp_path / "out"), given)


def test_taobao(tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.mkdir()
    for name, text in TAOBAO.FILES.items():
        (source / name).write_text(text)
    report = prepare("taobao", source, tmp_path / "out")
    table = pa.concat_tables([pq.read_table(file) for file in report.files])
    places = {(int(user), int(ad)): place for user, _, ad, place, _, _ in csv.reader(TAOBAO.SAMPLES.splitlines()[1:])}
    prices = {int(line[0]): float(line[-1]) for line in csv.reader(TAOBAO.ADS.splitlines()[1:])}
    rows = [
        {"pid": places[row["user"], row["adgroup_id"]], "price": prices.get(row["adgroup_id"])}
        for row in table.to_pylist()
    ]
    # An advertisement that is in no file has no price, and so has its request; both become 0.
    assert [row["price"] is None for row in rows].count(True) == table.column("price").null_count == 1
    histories = ["cate_history", "brand_history"]
    ids = [each.name for each in scanned(report).settled.sparse if each.name not in ("pid", *histories)]
    require_same_samples(report, rows, ids + histories)
