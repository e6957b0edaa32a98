"""Dates and timestamps in requests have the values that training reads in its Parquet files."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema import ParquetDataset, Run
from persia_cli.config.schema.features import DenseFeature
from persia_cli.data.read.scan import scan
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError
from persia_cli.serving.fields import RequestFields, read_fields, write_fields
from persia_cli.serving.golden import Golden, example_row
from persia_cli.serving.sample_columns import SampleColumns
from tests.support.runs import make_run

DAYS = [date(2024, 1, 5), None, date(1969, 12, 31)]
TIMES = [datetime(2024, 1, 5, 12, 30), None, datetime(1969, 12, 31, 23, 59, 59, 250_000)]
COLUMNS: dict[str, Any] = {
    "click": [0, 1, 0],
    "day": pa.array(DAYS, pa.date32()),
    "seen": pa.array(TIMES, pa.timestamp("us")),
    "paid": pa.array([None if each is None else each.replace(tzinfo=UTC) for each in TIMES], pa.timestamp("ms", "UTC")),
    "visits": pa.array([[DAYS[0], DAYS[2]], None, []], pa.list_(pa.date32())),
    "price": [1.0, 2.0, 3.0],
}
GIVEN = {
    "day": ["2024-01-05", None, "1969-12-31"],
    "seen": ["2024-01-05T12:30:00", None, "1969-12-31 23:59:59.25"],
    "paid": ["2024-01-05T14:30:00+02:00", None, "1969-12-31T23:59:59.250Z"],
    "visits": [["2024-01-05", "1969-12-31"], None, []],
    "price": [1.0, 2.0, 3.0],
}
SPARSE: list[Any] = [
    {"name": "day", "missing_id": 3},
    {"name": "hour", "column": "seen", "transform": "hour"},
    "paid",
    "visits",
    {"name": "old", "column": "seen", "buckets": [0.0, 1000.5]},
]


def settled(run: Run) -> ParquetDataset:
    """Return the data set with the settings of its training rows, with plain numbers for days."""
    found = {each.name: {"mean": 0.0, "deviation": 1.0, "values": "time"} for each in run.dataset.dense_features}
    return scan(
        run.dataset.model_copy(
            update={
                "dense": tuple(
                    DenseFeature(name=name, transform="standardise", **found[name]) if name != "price" else name
                    for name in found
                )
            }
        )
    ).settled


@pytest.fixture
def run(tmp_path: Path) -> Run:
    pq.write_table(pa.table(COLUMNS), tmp_path / "data.parquet")
    declared = {"path": str(tmp_path / "data.parquet"), "dense": ["day", "seen", "paid", "price"], "fill": -1.0}
    return make_run(SPARSE, dataset=declared | {"split": {"kind": "predict"}, "shuffle": False})


@pytest.fixture
def fields(run: Run, tmp_path: Path) -> RequestFields:
    write_fields(tmp_path, RequestFields.of(settled(run), frozenset({"visits"})))
    return read_fields(tmp_path)


def test_texts_are_the_dates_of_the_files(run: Run, fields: RequestFields) -> None:
    source = open_source(settled(run), "eval", 0)
    expected = source.read(0, 0, 3)
    source.close()
    for given in (GIVEN, {name: pa.array(values) for name, values in GIVEN.items()}):
        batch = fields.batch(given)
        np.testing.assert_array_equal(batch.dense, expected.dense)
        np.testing.assert_array_equal(batch.ids, expected.ids)
        np.testing.assert_array_equal(batch.offsets, expected.offsets)
    assert batch.dense[0].tolist() == [19727.0, np.float32(19727 + 12.5 / 24), np.float32(19727 + 12.5 / 24), 1.0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"day": ["05/01/2024"]}, "'05/01/2024' is not a date"),
        ({"day": [""]}, "'' is not a date"),
        ({"day": [19727]}, r"day .*2024-01-31T12:30:00Z"),
        ({"day": ["19727"]}, r"day .*2024-01-31T12:30:00Z"),
        ({"seen": ["2024-02-30"]}, "'2024-02-30' is not a date"),
    ],
)
def test_other_texts_are_refused_with_what_to_write(change: dict[str, Any], says: str, fields: RequestFields) -> None:
    with pytest.raises(DataError, match=says):
        fields.batch({name: values[:1] for name, values in GIVEN.items()} | change)


def test_requests_write_times_as_training_data_does(tmp_path: Path) -> None:
    times = ["7/1/2015 9:30 PM", "12/31/2015 12:05 AM", None]
    pq.write_table(pa.table({"click": [0, 1, 0], "when": times}), tmp_path / "data.parquet")
    form = "%m/%d/%Y %I:%M %p"
    sparse = [{"name": part, "column": "when", "transform": part, "format": form} for part in ("hour", "weekday")]
    dense = [{"name": "when", "format": form, "mean": 0.0, "deviation": 1.0}]
    declared = {"path": str(tmp_path / "data.parquet"), "dense": dense, "fill": -1.0, "split": {"kind": "predict"}}
    model = scan(make_run(sparse, dataset=declared | {"shuffle": False}).dataset).settled
    write_fields(tmp_path, RequestFields.of(model, frozenset()))
    fields = read_fields(tmp_path)
    source = open_source(model, "eval", 0)
    expected = source.read(0, 0, 3)
    source.close()
    batch = fields.batch({"when": times})
    np.testing.assert_array_equal(batch.ids, expected.ids)
    np.testing.assert_array_equal(batch.dense, expected.dense)
    assert batch.ids[:2].tolist() == [21, 0]
    assert fields.batch({"when": [example_row(fields, Golden(batch, np.empty(0)))["when"]]}).ids[0] == 12
    logged = SampleColumns(fields).arrays({"when": times}, 3)[0]
    np.testing.assert_array_equal(fields.batch({"when": logged}).ids, expected.ids)
    with pytest.raises(DataError, match=r"'2015-07-01' is not a time of the format .* in sample 0"):
        fields.batch({"when": ["2015-07-01"]})
