"""Files, columns and ids of every kind and name: what DuckDB counts, and what becomes of failures and Ctrl-C."""

import dataclasses
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import fs

from persia_cli.data.inspect import inspection, queries
from persia_cli.data.inspect.files import open_files
from persia_cli.data.inspect.inspection import Inspection, inspect_data
from persia_cli.data.inspect.queries import Queries
from persia_cli.data.inspect.suggestion import suggest_dataset
from persia_cli.errors import DataError

NAMES = [
    "d", "D", 'a "quoted" name', "it's", "a.b", "größe 大小", "file", "row", "split", "filename", "file_row_number",
    "file_index", "c0", "v", "first", "; DROP TABLE sample", "{}", "%s",
]  # fmt: skip


def look(path: Path) -> Inspection:
    return inspect_data(str(path), lambda done, total: None)


def write(path: Path, columns: dict[str, Any], rows: int = 1000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    return path


def test_columns_and_files_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's größe"
    columns = {name: np.arange(100) % (number + 2) for number, name in enumerate(NAMES)}
    write(folder / "a[1]*.parquet", columns)
    write(folder / "a1b.parquet", columns)
    found = look(folder)
    assert {name: column.distinct for name, column in found.profile.columns.items()} == {
        name: number + 2 for number, name in enumerate(NAMES)
    }
    assert found.profile.columns["D"].top[0] == ("0", 68 / 200)
    assert suggest_dataset(found.profile, found.roles, "x", inspection.CsvFormat()) is not None
    assert look(folder / "a[[]1]*.parquet").profile.rows == 100  # a wildcard that selects one


def test_ids_of_64_bits_keep_every_bit(tmp_path: Path) -> None:
    numbers = [2**64 - 1, 2**63, 2**63 - 1, 0, None]
    columns = {
        "unsigned": pa.array(numbers * 4, pa.uint64()),
        "signed": pa.array([-(2**63), -1, 2**63 - 1, 0, None] * 4, pa.int64()),
        "lists": pa.array([[2**64 - 1, None], [], None, [2**63], [2**63 - 1]] * 4, pa.list_(pa.uint64())),
    }
    found = look(write(tmp_path / "a.parquet", columns)).profile.columns
    tops = {name: {value for value, _ in column.top} for name, column in found.items()}
    assert tops["unsigned"] == {str(number) for number in numbers if number is not None}
    assert tops["signed"] == {str(-(2**63)), "-1", str(2**63 - 1), "0"}
    assert tops["lists"] == {str(2**64 - 1), str(2**63), str(2**63 - 1)}
    assert (found["lists"].count, found["lists"].nulls, found["unsigned"].nulls) == (12, 4, 4)
    lengths = found["lists"].lengths
    assert (lengths.least, lengths.greatest, lengths.counts) == (0, 2, (4, 8, 4))


def test_a_split_by_a_column_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": [0, 1], "z": [1, 2]})
    text = "kind: parquet\nlabels: [y]\nsparse: [z]\nsplit: {kind: column, column: prt, eval: b}\n"
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=r"there is no column prt; correct the split in dataset.yaml"):
        look(tmp_path)


def test_a_store_on_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that DuckDB does not know; several threads read the same files."""
    rng = np.random.default_rng(0)
    columns = {"id": rng.integers(0, 2**63, 200_000), "y": rng.integers(0, 2, 200_000),
               "word": pa.array([f"word {n}" for n in rng.integers(0, 50_000, 200_000)])}  # fmt: skip
    for name in ("a [1]", "b"):
        write(tmp_path / f"{name}.parquet", columns, rows=10_000)
    here = look(tmp_path)
    store = fs.SubTreeFileSystem("/", fs.LocalFileSystem())

    def elsewhere(*given: Any) -> Any:
        return dataclasses.replace(open_files(*given), filesystem=store)

    monkeypatch.setattr(inspection, "open_files", elsewhere)
    monkeypatch.setattr(queries, "_BLOCK_BYTES", 1 << 12)
    there = look(tmp_path)
    for name, column in here.profile.columns.items():
        other = there.profile.columns[name]
        assert (other.distinct, other.top, other.nulls, other.unseen_ids) == (
            column.distinct, column.top, column.nulls, column.unseen_ids,
        )  # fmt: skip
    assert there.suggestion == here.suggestion


def test_the_damaged_one_of_many_files_is_named(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.parquet", {"y": np.random.default_rng(0).random(5000)}, 5000)
    whole = bytearray((tmp_path / "b.parquet").read_bytes())
    whole[4:200] = bytes(196)
    (tmp_path / "b.parquet").write_bytes(whole)
    with pytest.raises(DataError, match=r"b.parquet: cannot be read \(.*\); prepare the file again"):
        look(tmp_path)


def test_ctrl_c_ends_the_query_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = open_files(str(write(tmp_path / "a.parquet", {"y": np.arange(1000)})))
    opened = Queries(source)
    me = threading.get_ident()
    threading.Timer(0.3, lambda: signal.pthread_kill(me, signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            opened.run("SELECT count(*) FROM range(1000000000000) AS a(i) WHERE hash(i) = 1")
    finally:
        opened.close()
    assert not any(thread.name.startswith("persia-query") for thread in threading.enumerate())
    assert not list((tmp_path / "temporary").iterdir())


ROWS = 200_000
"""More than the sampled rows."""


@pytest.mark.parametrize("size", [700, 150_000])
def test_ids_are_counted_whatever_their_type(size: int, tmp_path: Path) -> None:
    numbers = np.resize(np.random.default_rng(0).permutation(10**12 + np.arange(size)), ROWS)
    columns = {
        "signed": -numbers,
        "unsigned": numbers.astype(np.uint64) + np.uint64(2**63),
        "text": pa.array([f"w{number}" for number in numbers]),
        "lists": pa.array([[number, number + 1] for number in numbers.tolist()]),
    }
    found = look(write(tmp_path / "a.parquet", columns, 50_000)).profile.columns
    assert [column.distinct for column in found.values()] == [size, size, size, size + 1]
    assert [column.count for column in found.values()] == [ROWS, ROWS, ROWS, 2 * ROWS]


def test_frequent_and_unseen_ids(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).zipf(1.3, ROWS).astype(np.int64)
    words = pa.array([f"w{number}" for number in numbers])
    found = look(write(tmp_path / "a.parquet", {"id": -numbers, "word": words}, 50_000)).profile.columns
    top = Counter(numbers.tolist()).most_common(5)
    assert found["id"].top == tuple((str(-number), count / ROWS) for number, count in top)
    assert found["word"].top == tuple((f"w{number}", count / ROWS) for number, count in top)
    known, seen = set(numbers[: ROWS * 4 // 5].tolist()), numbers[ROWS * 4 // 5 :].tolist()
    assert found["id"].unseen_ids == len(set(seen) - known) / len(set(seen))
    assert found["id"].unseen_lookups == sum(number not in known for number in seen) / len(seen)


def test_ids_of_columns_that_read_one_table_are_counted_once(tmp_path: Path) -> None:
    known = {"kind": "parquet", "path": ".", "labels": ["y"], "split": {"kind": "every", "n": 5}}
    sparse = [{"name": "seen", "table": "item"}, "item", {"name": "tags", "table": "item", "separator": "|"}]
    (tmp_path / "dataset.yaml").write_text(yaml.safe_dump(known | {"sparse": sparse}))
    columns = {"item": ["a", "b"] * 50, "seen": [["b", "c"], []] * 50, "tags": ["d|e", "a| d"] * 50, "y": [0, 1] * 50}
    write(tmp_path / "a.parquet", columns)
    found = look(tmp_path)
    assert found.table_rows == {"item": 5}
    assert [found.profile.columns[name].distinct for name in ("item", "seen", "tags")] == [2, 2, 3]
