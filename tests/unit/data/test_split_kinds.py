"""Splits by time, by hash, by the last sample of a group, and with test samples."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.inspect.inspection import inspect_data
from persia_cli.data.read.dataset_yaml import to_yaml
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.scan import scan
from persia_cli.errors import DataError
from tests.support.samples import read

ROWS = 300
START = datetime(2024, 1, 30, 22)
TIMES = [START + timedelta(hours=n // 10) for n in range(ROWS)]
"""Thirty hours; February begins with row 260."""


def write(folder: Path, columns: dict[str, Any], group_rows: int = 37) -> None:
    rows = len(next(iter(columns.values())))
    table = pa.table({"y": [n % 2 for n in range(rows)], "row": np.arange(rows, dtype=np.float32), **columns})
    pq.write_table(table.slice(0, rows // 2), folder / "a.parquet", row_group_size=group_rows)
    pq.write_table(table.slice(rows // 2), folder / "b.parquet", row_group_size=group_rows)


def dataset(folder: Path, split: dict[str, Any]) -> ParquetDataset:
    keys = {"kind": "parquet", "path": str(folder), "labels": ["y"], "dense": ["row"]}
    return ParquetDataset.model_validate({**keys, "rescale": False, "split": split})


def rows_of(data: ParquetDataset, name: Any) -> list[int]:
    return sorted(read(data, name).dense[:, 0].astype(int).tolist())


def parts_of(data: ParquetDataset) -> tuple[list[int], list[int]]:
    """Return the rows that train and those that evaluate; what planning found gives the same."""
    settled = scan(data).settled
    found = rows_of(data, "train"), rows_of(data, "eval")
    assert (rows_of(settled, "train"), rows_of(settled, "eval")) == found
    return found


def all_but(rows: Sequence[int], among: int = ROWS) -> list[int]:
    return sorted({*range(among)} - {*rows})


@pytest.mark.parametrize("kind", [pa.timestamp("ns", "Asia/Tokyo"), pa.date64(), "csv"])
def test_times_may_name_the_split_and_the_queries(tmp_path: Path, kind: Any) -> None:
    days = [START.replace(hour=0) + timedelta(days=n % 3) for n in range(ROWS)]
    if kind == "csv":
        lines = [f"{n % 2},{n},{day.isoformat()}" for n, day in enumerate(days)]
        (tmp_path / "a.csv").write_text("\n".join(["y,row,at", *lines, ""]))
    else:
        write(tmp_path, {"at": pa.array(days).cast(kind)})
    for value in ("2024-01-31", "2024-01-31T00:00:00Z"):
        data = dataset(tmp_path, {"kind": "column", "column": "at", "eval": value})
        evaluating = list(range(1, ROWS, 3))
        assert parts_of(data) == (all_but(evaluating), evaluating)
        (tmp_path / "dataset.yaml").write_text(to_yaml(data))
        assert inspect_data(str(tmp_path), lambda done, total: None).profile.split_rows["eval"] == len(evaluating)
        queries = read(data.model_copy(update={"group_by": "at"}), "eval").query_ids
        assert np.unique(queries).size == 1
    with pytest.raises(DataError, match=r"dataset\.split\.eval: 'soon' is not a date or time"):
        scan(dataset(tmp_path, {"kind": "column", "column": "at", "eval": "soon"}))


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (pa.timestamp("s"), "2024-02-01"),
        (pa.timestamp("ns"), date(2024, 2, 1)),
        (pa.timestamp("us", tz="America/New_York"), "2024-02-01T00:00:00Z"),
        (pa.timestamp("ms"), datetime(2024, 2, 1, 3, tzinfo=timezone(timedelta(hours=3)))),
        (pa.string(), "2024-02-01 00:00:00"),
        (pa.int64(), int(datetime(2024, 2, 1, tzinfo=UTC).timestamp())),
    ],
)
def test_times_of_every_kind_split_at_the_same_rows(tmp_path: Path, kind: Any, first: Any) -> None:
    if kind == pa.string():
        times = pa.array([time.isoformat() for time in TIMES])
    else:
        times = pa.array(TIMES, pa.timestamp("s")).cast(kind)
    write(tmp_path, {"ts": times})
    train, evaluation = parts_of(dataset(tmp_path, {"kind": "time", "column": "ts", "eval_from": first}))
    assert evaluation == list(range(260, ROWS))
    assert train == all_but(evaluation)


@pytest.mark.parametrize("is_integer", [True, False])
def test_the_last_fraction_by_time_keeps_ties_together(tmp_path: Path, is_integer: bool) -> None:
    order = np.random.default_rng(0).permutation(ROWS)
    times = [order[n] // 10 if is_integer else START + timedelta(hours=int(order[n]) // 10) for n in range(ROWS)]
    write(tmp_path, {"ts": times})
    data = dataset(tmp_path, {"kind": "time", "column": "ts", "eval_fraction": 0.1, "test_fraction": 0.2})
    train, evaluation = parts_of(data)
    ranks = [sorted(int(order[row]) for row in rows) for rows in (train, evaluation)]
    assert ranks == [[*range(210)], [*range(210, 240)]]
    tested = scan(data).settled.split.of_test()
    test = rows_of(data.model_copy(update={"split": tested}), "eval")
    assert sorted(order[test].tolist()) == [*range(240, ROWS)]
    settled = scan(data).settled.split
    assert scan(data.model_copy(update={"split": settled})).settled.split == settled


@pytest.mark.parametrize(
    ("counts", "rule", "parts"),
    [
        ([50, 50], {"eval_fraction": 0.1}, [50, 50]),
        ([99, 1], {"eval_fraction": 0.9}, [99, 1]),
        ([60, 25, 15], {"eval_fraction": 0.2}, [85, 15]),
        ([90, 5, 5], {"eval_fraction": 0.4, "test_fraction": 0.4}, [90, 5, 5]),
        ([10, 10, 80], {"eval_fraction": 0.1, "test_fraction": 0.1}, [10, 10, 80]),
        ([40, 30, 20, 10], {"eval_from": 2, "test_fraction": 0.5}, [70, 20, 10]),
        ([40, 30, 20, 10], {"eval_fraction": 0.3, "test_from": 2}, [40, 30, 30]),
    ],
)
def test_a_fraction_by_time_is_the_nearest_that_leaves_no_part_empty(
    tmp_path: Path, counts: list[int], rule: dict[str, Any], parts: list[int]
) -> None:
    write(tmp_path, {"ts": np.repeat(np.arange(len(counts)), counts)})
    found = scan(dataset(tmp_path, {"kind": "time", "column": "ts"} | rule)).split_rows
    assert [sum(found.train), sum(found.eval), found.test] == [*parts, 0][:3]


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "time", "column": "n", "eval_from": 50, "test_from": 80},
        {"kind": "hash", "eval_fraction": 0.2, "test_fraction": 0.1},
        {"kind": "last", "group": "user", "order": "n", "test": True},
        {"kind": "column", "column": "user", "eval": 1, "test": 2},
        {"kind": "column", "column": "user", "train": 0, "eval": 1, "test": 2},
    ],
)
def test_every_row_is_counted_in_one_part(tmp_path: Path, split: dict[str, Any]) -> None:
    write(tmp_path, {"n": [*range(100)], "user": [n % 4 for n in range(100)]})
    data = dataset(tmp_path, split)
    facts = inspect(data)
    tested = data.split.of_test()
    assert facts.test_rows == inspect(data.model_copy(update={"split": tested})).eval_rows > 0
    assert facts.train_rows + facts.eval_rows + facts.test_rows + facts.unused_rows == 100
    assert facts.unused_rows == (25 if "train" in split else 0)


@pytest.mark.parametrize(
    ("times", "rule", "message"),
    [
        ([5] * 9, {"eval_fraction": 0.2}, r"^dataset\.split\.eval_fraction: "),
        ([1, 2] * 9, {"eval_fraction": 0.2, "test_fraction": 0.2}, r"^dataset\.split\.test_fraction: "),
        ([1, 2, 3], {"eval_from": 3, "test_fraction": 0.2}, r"^dataset\.split\.test_fraction: "),
        ([1, 2], {"eval_from": "2024-02-01"}, "eval_from is 2024-02-01T00:00:00, but the column holds integers"),
        ([START, START], {"eval_from": 5}, "eval_from is 5, but the column holds times"),
        ([START, None], {"eval_from": "2024-02-01"}, "column ts has nulls"),
        (
            ["x", "y"],
            {"eval_from": "2024-02-01"},
            "'x' is not a date or time such as .* in row 0 .*of column ts; write it as 2024",
        ),
        ([0.5, 1.5], {"eval_from": 1}, "column ts is double, but times are dates"),
        ([1, 2], {"eval_from": 9}, "leaves nothing to evaluate on of .* from 1 to 2"),
        ([1, 2], {"eval_from": 0}, "leaves nothing to train on"),
    ],
)
def test_times_that_cannot_split_are_refused(tmp_path: Path, times: Any, rule: dict[str, Any], message: str) -> None:
    write(tmp_path, {"ts": times})
    with pytest.raises(DataError, match=message):
        scan(dataset(tmp_path, {"kind": "time", "column": "ts"} | rule))


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "time", "column": "ts"},
        {"kind": "time", "column": "ts", "eval_from": 1, "eval_fraction": 0.1},
        {"kind": "time", "column": "ts", "eval_from": "yesterday"},
        {"kind": "time", "column": "ts", "eval_from": 5, "test_from": 5},
        {"kind": "time", "column": "ts", "eval_from": "2024-02-01", "test_from": "2024-01-31T23:00:00"},
        {"kind": "time", "column": "ts", "eval_fraction": 1.0},
        {"kind": "hash", "eval_fraction": 0.5, "test_fraction": 0.5},
        {"kind": "column", "column": "ts", "eval": "a", "test": "a"},
        {"kind": "column", "column": "ts", "train": 1, "eval": 1},
        {"kind": "every", "n": 3, "offset": 3},
    ],
)
def test_splits_without_one_meaning_are_refused(tmp_path: Path, split: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        dataset(tmp_path, split)


@pytest.mark.parametrize("kind", [pa.int32(), pa.dictionary(pa.int32(), pa.string())])
def test_all_rows_of_a_user_are_in_one_split(tmp_path: Path, kind: Any) -> None:
    rows = 3000
    users = [None if n % 50 == 0 else n * 7919 % 500 for n in range(rows)]
    plain = pa.array(users, pa.int32())
    write(tmp_path, {"user": plain if kind == pa.int32() else plain.cast(pa.string()).cast(kind)}, group_rows=701)
    data = dataset(tmp_path, {"kind": "hash", "column": "user", "eval_fraction": 0.2, "test_fraction": 0.1})
    train, evaluation = parts_of(data)
    tested = data.split.of_test()
    test = rows_of(data.model_copy(update={"split": tested}), "eval")
    sides = [{users[row] for row in rows} for rows in (train, evaluation, test)]
    assert sorted(train + evaluation + test) == [*range(rows)]
    assert not sides[0] & sides[1]
    assert not sides[2] & (sides[0] | sides[1])
    assert abs(len(sides[1]) - 100) < 40
    assert abs(len(sides[2]) - 50) < 30


@pytest.mark.parametrize("test", [False, True])
def test_the_last_row_of_each_user_evaluates(tmp_path: Path, test: bool) -> None:
    rng = np.random.default_rng(1)
    users: list[Any] = rng.integers(0, 60, ROWS).tolist()
    users[17] = users[170] = None
    users[100] = 999
    times = rng.integers(0, 50, ROWS)
    write(tmp_path, {"user": users, "ts": times})
    data = dataset(tmp_path, {"kind": "last", "group": "user", "order": "ts", "test": test})
    by_user: dict[Any, list[int]] = {}
    for row in sorted(range(ROWS), key=lambda row: (times[row], row)):
        by_user.setdefault(users[row], []).append(row)
    by_user.pop(None)
    last = sorted(rows[-1] for rows in by_user.values() if len(rows) > 1)
    before = sorted(rows[-2] for rows in by_user.values() if len(rows) > 2)
    train, evaluation = parts_of(data)
    assert evaluation == (before if test else last)
    assert train == all_but([*last, *before] if test else last)
    if test:
        tested = data.split.of_test()
        assert rows_of(data.model_copy(update={"split": tested}), "eval") == last


def test_test_files_are_in_no_other_split(tmp_path: Path) -> None:
    write(tmp_path, {"x": [0] * ROWS})
    by_file = dataset(tmp_path, {"kind": "files", "train": ["a*"], "test": ["b*"]})
    assert rows_of(by_file, "train") == [*range(150)]
    tested = by_file.split.of_test()
    assert rows_of(by_file.model_copy(update={"split": tested}), "eval") == [*range(150, ROWS)]
    missing = dataset(tmp_path, {"kind": "files", "train": ["a*"], "eval": ["c*"]})
    with pytest.raises(DataError, match=r"eval: no file below .* matches c\*; there are a.parquet, b.parquet"):
        scan(missing)
