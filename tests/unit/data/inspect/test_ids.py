"""Estimates about the ids of a column, against a count of all of them in Python."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.data.inspect.inspection import Inspection, inspect_data

ROWS = 200_000
"""More than the sampled rows."""


def look(folder: Path, columns: dict[str, Any]) -> Inspection:
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=50_000)
    return inspect_data(str(folder), lambda done, total: None)


@pytest.mark.parametrize("size", [1, 700, 150_000])
def test_ids_are_counted_whatever_their_type(size: int, tmp_path: Path) -> None:
    numbers = np.resize(np.random.default_rng(0).permutation(10**12 + np.arange(size)), ROWS)
    columns = {
        "signed": -numbers,
        "unsigned": numbers.astype(np.uint64) + np.uint64(2**63),
        "text": pa.array([f"w{number}" for number in numbers]),
        "lists": pa.array([[number, number + 1] for number in numbers.tolist()]),
    }
    found = look(tmp_path, columns).profile.columns
    assert [column.distinct for column in found.values()] == [size, size, size, size + 1]
    assert [column.count for column in found.values()] == [ROWS, ROWS, ROWS, 2 * ROWS]


def test_frequent_and_unseen_ids(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).zipf(1.3, ROWS).astype(np.int64)
    found = look(tmp_path, {"id": -numbers, "word": pa.array([f"w{n}" for n in numbers])}).profile.columns
    top = Counter(numbers.tolist()).most_common(5)
    assert found["id"].top == tuple((str(-number), count / ROWS) for number, count in top)
    assert found["word"].top == tuple((f"w{number}", count / ROWS) for number, count in top)
    known, seen = set(numbers[: ROWS * 4 // 5].tolist()), numbers[ROWS * 4 // 5 :].tolist()
    assert found["id"].drift.unseen_ids == len(set(seen) - known) / len(set(seen))
    assert found["id"].drift.unseen_lookups == sum(number not in known for number in seen) / len(seen)


def test_ids_of_columns_that_read_one_table_are_counted_once(tmp_path: Path) -> None:
    known = {"kind": "parquet", "path": ".", "labels": ["y"], "split": {"kind": "every", "n": 5}}
    sparse = [{"name": "seen", "table": "item"}, "item", {"name": "tags", "table": "item", "separator": "|"}]
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(known | {"sparse": sparse}))
    columns = {"item": ["a", "b"] * 50, "seen": [["b", "c"], []] * 50, "tags": ["d|e", "a| d"] * 50, "y": [0, 1] * 50}
    found = look(tmp_path, columns)
    assert found.table_rows == {"item": 5}
    assert [found.profile.columns[name].distinct for name in ("item", "seen", "tags")] == [2, 2, 3]


def test_a_list_named_after_a_column_of_its_type_raises_a_question(tmp_path: Path) -> None:
    rows = np.arange(200)
    lists = pa.array([[row % 40, row % 7] for row in rows.tolist()])
    names = {"item_id": rows % 40, "hist_item": lists, "itemHistory": lists, "attrs": lists, "user": rows % 9}
    found = look(tmp_path, {"click": rows % 3 == 0, **names, "item_words": pa.array([["a"], ["b"]] * 100)})
    asked = {name for name, guess in found.roles.items() if "set table: item_id" in guess.doubt}
    assert asked == {"hist_item", "itemHistory"}
    assert all(guess.table is None for guess in found.roles.values())
    assert "if these are ids of item_id, set table: item_id" in found.suggestion


def test_no_ids_at_all(tmp_path: Path) -> None:
    column = look(tmp_path, {"id": pa.nulls(10, pa.int64()), "y": [0, 1] * 5}).profile.columns["id"]
    assert (column.distinct, column.count, column.top) == (0, 0, ())
    assert column.drift.unseen_ids is None
