"""The times of lists as inputs: equal from events, from ready lists and by definition; what is no such time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema import ParquetDataset, PredictSplit
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.sample_columns import SampleColumns
from tests.support.samples import read, same

LENGTH, ROWS = 5, 600
FIRST = datetime(2024, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("cache")


def described(path: Path, **changes: Any) -> ParquetDataset:
    history = {"user": "user", "time": "ts", "columns": ["movie"], "max_length": LENGTH}
    values = {
        "kind": "parquet",
        "path": str(path),
        "labels": ["liked"],
        "dense": ["price", "watched.ts"],
        "sparse": ["movie", {"name": "watched.movie", "table": "movie", "pooling": "none"}],
        "histories": {"watched": history | changes.pop("history", {})},
        "split": {"kind": "every", "n": 5},
    }
    return ParquetDataset.model_validate(values | changes)


def made_up() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "user": rng.integers(0, 20, ROWS),
        "ts": rng.integers(-3000, 3000, ROWS) * 7,
        "movie": rng.integers(1, 100, ROWS),
        "liked": rng.integers(0, 2, ROWS),
        "price": np.arange(ROWS) * 0.01,
    }


def written(folder: Path, columns: dict[str, Any]) -> Path:
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=97)
    return folder


def with_lists(columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the columns with ready lists, and the gaps of each row, by definition."""
    user, ts, movie = (columns[name] for name in ("user", "ts", "movie"))
    items, times, gaps = [], [], np.zeros((ROWS, LENGTH), np.float32)
    for row in range(ROWS):
        mine = np.flatnonzero((user == user[row]) & (ts < ts[row]))
        mine = mine[np.argsort(ts[mine], kind="stable")][-LENGTH:]
        items.append(movie[mine])
        times.append(ts[mine])
        gaps[row, : mine.size] = np.diff(np.append(ts[mine], ts[row]))
    return columns | {"watched.movie": items, "watched.ts": times}, gaps


@pytest.mark.parametrize("kind", ["integers", "timestamps", "texts", "seconds"])
def test_gaps_from_events_are_those_of_ready_lists_and_of_their_definition(tmp_path: Path, kind: str) -> None:
    columns, gaps = with_lists(made_up())

    def of_kind(times: Any) -> list[Any]:
        moments = [FIRST + timedelta(seconds=int(time)) for time in times]
        if kind == "texts":
            return [moment.isoformat() for moment in moments]
        return moments if kind == "timestamps" else [int(time) for time in times]

    columns |= {"ts": of_kind(columns["ts"]), "watched.ts": list(map(of_kind, columns["watched.ts"]))}
    ready = written(tmp_path / "ready", columns)
    events = written(tmp_path / "events", {name: columns[name] for name in columns if "." not in name})
    history = {"format": "seconds"} if kind == "seconds" else {}
    dataset = described(events, history=history)
    settled = inspect(dataset).settled
    assert settled is not None
    assert settled.times[0].values == ("number" if kind == "integers" else "time")
    for split in ("train", "eval"):
        same(read(dataset, split, seed=3), read(described(ready, history=history), split, seed=3))
    plain = described(ready, history=history, shuffle=False, split={"kind": "every", "n": 2, "offset": 1})
    np.testing.assert_array_equal(read(plain).dense[:, 1:], gaps[::2])
    np.testing.assert_array_equal(read(plain, "eval").dense[:, 1:], gaps[1::2])
    # A log has lists, and neither users nor labels.
    log = {name: columns[name] for name in ("ts", "movie", "price", "watched.movie", "watched.ts")}
    predicted = {"path": str(written(tmp_path / "log", log)), "split": PredictSplit(kind="predict")}
    again = read(settled.model_copy(update=predicted), "eval")
    np.testing.assert_array_equal(again.dense[:, 1:], gaps)
    # So does a request, and its own log.
    request = log | {"watched.movie": list(map(list, log["watched.movie"]))}
    if kind == "timestamps":
        request |= {"ts": list(map(str, log["ts"])), "watched.ts": [list(map(str, each)) for each in log["watched.ts"]]}
    fields = RequestFields.of(settled, frozenset({"watched.movie"}))
    asked = fields.batch(request)
    np.testing.assert_array_equal(asked.dense, again.dense)
    np.testing.assert_array_equal(asked.ids, again.ids)
    made = SampleColumns(fields)
    (tmp_path / "requests").mkdir()
    table = pa.Table.from_arrays(made.arrays(request, ROWS), schema=made.schema())
    pq.write_table(table, tmp_path / "requests/rows.parquet")
    logged = read(settled.model_copy(update=predicted | {"path": str(tmp_path / "requests")}), "eval")
    np.testing.assert_array_equal(logged.dense, again.dense)
    np.testing.assert_array_equal(logged.ids, again.ids)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"watched.ts": [[1], [2, 3]]}, "watched.ts has another number of times than watched.movie has"),
        (
            {"watched.movie": [[1, 2], [1] * 9], "watched.ts": [[1, 2], [2] * 8]},
            "watched.ts has another number of times than watched.movie has elements in row 1",
        ),
        ({"watched.ts": [[1, 2], [2, None]]}, "watched.ts has a missing time in row 1"),
        ({"watched.movie": [[1, 2], None], "watched.ts": [[1, 2], None]}, "watched.ts has a missing time in row 1"),
        ({"watched.ts": [[2, 1], [2, 3]]}, "watched.ts does not ascend up to ts in row 0"),
        ({"ts": [9, 2]}, "watched.ts does not ascend up to ts in row 1"),
        ({"ts": [9, None]}, "watched.ts has times, and ts has none in row 1"),
        ({"watched.ts": [1, 2]}, "column watched.ts holds one value for each sample, but"),
        ({"watched.ts": [["2024-01-01", "2024-01-01"]] * 2}, "column watched.ts holds strings, but each time"),
        ({"ts": [1.5, 2.0]}, "column ts holds numbers with a fraction, but each time of watched.movie is an integer"),
        ({"watched.ts": None}, "have lists in watched.movie, and some files or all have no watched.ts"),
    ],
)  # fmt: skip
def test_times_of_another_kind_or_number_are_refused(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    columns: dict[str, Any] = {"ts": [9, 9], "movie": [1, 2], "price": [0.0, 0.0], "liked": [0, 1]}
    columns |= {"watched.movie": [[1, 2], [3, 4]], "watched.ts": [[1, 2], [9, 9]]}
    kept = {name: values for name, values in (columns | changed).items() if values is not None}
    path = written(tmp_path / "log", kept)
    dense = [{"name": "watched.ts", "values": "number"}]
    with pytest.raises(DataError) as error:
        read(described(path, dense=dense, split={"kind": "every", "n": 9, "offset": 8}))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("dense", "text"),
    [
        ({"name": "t", "times_of": "watched.movie"}, "give both times_of and until of t"),
        ({"name": "t", "times_of": "movie", "until": "ts"}, "which is no sparse feature with pooling: none"),
        ({"name": "t", "times_of": "watched.movie", "until": "ts", "width": 4}, "width: 4, and watched.movie"),
        ({"name": "t", "times_of": "watched.movie", "until": "ts", "transform": "log1p"}, "is not of times_of"),
    ],
)  # fmt: skip
def test_settings_that_are_no_times_of_a_list_are_refused(dense: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        described(Path("events"), dense=[dense])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"watched.ts": [["2024-01-01"]]}, "watched.ts has another number of times than watched.movie has"),
        ({"watched.movie": [[1] * 9], "watched.ts": [["2024-01-01"] * 8]}, "has another number of times than watched."),
        ({"watched.ts": [[1, 2]]}, "field watched.ts holds integers, but each time of watched.movie is a date or time"),
        ({"ts": [17]}, "field ts holds integers, but each time of watched.movie is a date or time such as"),
        ({"ts": ["2023-01-01"]}, "watched.ts does not ascend up to ts in sample 0"),
        ({"ts": [None]}, "watched.ts has times, and ts has none in sample 0"),
        ({"watched.ts": ["2024-01-01"]}, "field watched.ts holds one value for each sample, but"),
        ({"watched.ts": [["soon", "2024-01-01"]]}, "'soon' is not a date or time"),
        ({"ts": None}, "has no field ts; the model reads"),
        ({"watched.ts": None}, "has no field watched.ts; the model reads"),
    ],
)  # fmt: skip
def test_requests_without_such_times_are_refused(changed: dict[str, Any], text: str) -> None:
    settled = described(Path("events"), dense=[{"name": "watched.ts", "values": "time"}])
    fields = RequestFields.of(settled, frozenset({"watched.movie"}))
    request: dict[str, Any] = {"movie": [1], "watched.movie": [[1, 2]], "ts": ["2024-01-03"]}
    request |= {"watched.ts": [["2024-01-01", "2024-01-02T12:00:00Z"]]}
    assert fields.batch(request).dense.tolist() == [[129600.0, 43200.0, 0.0, 0.0, 0.0]]
    with pytest.raises(DataError) as error:
        fields.batch({name: values for name, values in (request | changed).items() if values is not None})
    assert text in str(error.value)
