"""Files and columns of every kind and name as tables of DuckDB, and what becomes of failures and Ctrl-C."""

import dataclasses
import math
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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
    assert lengths is not None
    assert (lengths.least, lengths.greatest, lengths.counts) == (0, 2, (4, 8, 4))


def test_nan_is_a_number_that_is_not_finite_and_null_is_none(tmp_path: Path) -> None:
    values = pa.array([math.nan, None, 1.5, math.inf, -math.inf, 2.5, None, 1.5, 2.5, 1.5])
    whole = pa.array([math.nan, None, 1.0, 2.0, 3.0] * 40)
    columns = look(write(tmp_path / "a.parquet", {"x": values, "n": whole[:10], "y": [0, 1] * 5})).profile.columns
    numbers = columns["x"].numbers
    assert numbers is not None
    assert (columns["x"].nulls, numbers.not_finite, numbers.least, numbers.greatest) == (2, 3, 1.5, 2.5)
    assert numbers.mean == pytest.approx(9.5 / 5)
    assert (columns["n"].distinct, columns["n"].count) == (3, 6)


def test_lists_of_lists_are_not_used(tmp_path: Path) -> None:
    nested = pa.array([[[1, 2], [3]], [], None] * 10)
    found = look(write(tmp_path / "a.parquet", {"nested": nested, "y": [0, 1, 1] * 10}))
    assert found.profile.columns["nested"].kind == "other"
    assert found.roles["nested"].reason == "list<list<element: int64>> is neither numbers nor ids"


def test_texts_of_bytes_and_of_words(tmp_path: Path) -> None:
    columns = {
        "bytes": pa.array([b"\xff\xfe", b"plain", b"plain", None]),
        "words": pa.array(["größe 大小", "it's", "it's", ""]),
        "lists": pa.array([["a", None, "a"], [], None, ["ü"]]),
    }
    found = look(write(tmp_path / "a.parquet", columns)).profile.columns
    assert found["bytes"].top == (("plain", 2 / 3), ("\ufffd\ufffd", 1 / 3))
    assert dict(found["words"].top) == {"it's": 0.5, "größe 大小": 0.25, "": 0.25}
    assert (found["lists"].top, found["lists"].count) == ((("a", 2 / 3), ("ü", 1 / 3)), 3)


def test_files_without_rows_among_others(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": np.arange(0)})
    write(tmp_path / "b.parquet", {"y": np.arange(10)})
    write(tmp_path / "c.parquet", {"y": np.arange(0)})
    assert look(tmp_path).profile.split_rows == {"train": 8, "eval": 2}


def test_a_column_that_a_folder_names_only_where_the_file_has_none(tmp_path: Path) -> None:
    write(tmp_path / "x=5" / "a.parquet", {"y": [0, 1], "x": [1, None]})
    write(tmp_path / "x=7" / "b.parquet", {"y": [1, 1]})
    column = look(tmp_path).profile.columns["x"]
    assert (dict(column.top), column.nulls) == ({"7": 2 / 3, "1": 1 / 3}, 1)


def test_a_split_by_a_column_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"y": [0, 1], "z": [1, 2]})
    text = "kind: parquet\nlabels: [y]\nsparse: [z]\nsplit: {kind: column, column: prt, eval: b}\n"
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=r"there is no column prt; correct the split in dataset.yaml"):
        look(tmp_path)


def test_dates_make_the_split(tmp_path: Path) -> None:
    days = pa.array(["2024-01-01", "2024-01-02", None] * 5).cast(pa.date32())
    write(tmp_path / "a.parquet", {"y": [0, 1, 1] * 5, "z": [1, 2, 3] * 5, "day": days})
    text = "kind: parquet\nlabels: [y]\nsparse: [z]\nsplit: {kind: column, column: day, eval: 2024-01-02}\n"
    (tmp_path / "dataset.yaml").write_text(text)
    assert look(tmp_path).profile.split_rows == {"train": 10, "eval": 5}


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
        assert (other.distinct, other.top, other.nulls, other.drift) == (
            column.distinct, column.top, column.nulls, column.drift,
        )  # fmt: skip
    assert there.suggestion == here.suggestion


def test_a_store_that_fails_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", {"y": np.arange(5000)})
    store = fs.SubTreeFileSystem("/", fs.LocalFileSystem())

    def elsewhere(*given: Any) -> Any:
        return dataclasses.replace(open_files(*given), filesystem=store)

    def fails(self: Any, nbytes: int) -> bytes:
        raise OSError("the connection was lost")

    monkeypatch.setattr(inspection, "open_files", elsewhere)
    monkeypatch.setattr(queries._StoreFile, "read", fails)
    with pytest.raises(DataError, match=r"a.parquet: cannot be read \(.*the connection was lost") as failure:
        look(tmp_path)
    assert "\n" not in str(failure.value)


def test_text_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa")]
    )
    with pytest.raises(DataError, match=r"a.parquet: cannot be read \(.*not valid UTF8") as failure:
        look(write(tmp_path / "a.parquet", {"word": bad, "y": [0, 1]}))
    assert "\n" not in str(failure.value)


def test_a_file_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", {"y": np.arange(5000)})

    def gone(*given: Any) -> Any:
        source = open_files(*given)
        path.unlink()
        return source

    monkeypatch.setattr(inspection, "open_files", gone)
    with pytest.raises(DataError, match=r"a.parquet: cannot be read"):
        look(tmp_path)


def test_the_damaged_one_of_many_files_is_named(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.parquet", {"y": np.random.default_rng(0).random(5000)}, 5000)
    whole = bytearray((tmp_path / "b.parquet").read_bytes())
    whole[4:200] = bytes(196)
    (tmp_path / "b.parquet").write_bytes(whole)
    with pytest.raises(DataError, match=r"b.parquet: cannot be read \(.*\); prepare the file again"):
        look(tmp_path)


def test_too_little_memory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MEMORY", "1MiB")
    words = pa.array([f"{n:0400}" for n in range(30_000)])
    with pytest.raises(DataError, match="need more than 1MiB") as failure:
        look(write(tmp_path / "a.parquet", {"word": words}, 30_000))
    assert "\n" not in str(failure.value)


def test_ctrl_c_ends_the_query_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    source = open_files(str(write(tmp_path / "a.parquet", {"y": np.arange(1000)})))
    began = threading.Event()

    def progress(done: int, total: int) -> None:
        began.set()
        raise KeyboardInterrupt

    opened = Queries(source, progress)
    opened.steps = 1
    try:
        with pytest.raises(KeyboardInterrupt):
            opened.run("SELECT count(*) FROM range(1000000000000) AS a(i) WHERE hash(i) = 1")
    finally:
        opened.close()
    assert began.is_set()
    assert not any(thread.name.startswith("persia-query") for thread in threading.enumerate())
    assert not list((tmp_path / "temporary").iterdir())


def test_progress_never_goes_back_and_ends_at_all_rows(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    columns = {f"c{n}": np.arange(5000) % (n + 3) for n in range(40)}
    inspect_data(str(write(tmp_path / "a.parquet", columns)), lambda done, total: seen.append((done, total)))
    done = [each for each, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == (5000, 5000)
    assert len(set(done)) > 40
