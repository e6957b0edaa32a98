"""Pre-trained vectors in Parquet files: what is read, and each refusal with its file and row group."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.data.read.ids import text_id
from persia_cli.data.read.vectors import find_vectors, read_vectors
from persia_cli.errors import DataError

KEY = "init_from.vectors.item"
IDS = [3, 1, 2, 9, 7]
VALUES = [[0.5, -1.0], [2.0, 0.25], [0.0, 1.0], [-8.0, 4.0], [3.0, 3.0]]


def write(path: Path, ids: Any = IDS, values: Any = VALUES, kind: Any = None, **columns: Any) -> Path:
    """Write a file with row groups of two rows."""
    ids = ids if isinstance(ids, pa.Array) else pa.array(ids)
    table = {"id": ids, "vector": pa.array(values, kind or pa.list_(pa.float32()))}
    pq.write_table(pa.table(table | columns), path, row_group_size=2)
    return path


def read(path: Path, dim: int = 2, made: Any = None, **names: Any) -> tuple[list[int], list[list[float]]]:
    columns = find_vectors(str(path), names.get("id"), names.get("vector"), dim, KEY)
    batches = list(read_vectors(str(path), columns, dim, "item", made))
    assert sum(len(batch.ids) for batch in batches) == columns.rows
    assert all(batch.vectors.dtype == np.float32 for batch in batches)
    return [i for b in batches for i in b.ids.tolist()], [v for b in batches for v in b.vectors.tolist()]


@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_vectors_of_every_type_are_read(tmp_path, number, lists):
    values = [[np.float16(each) for each in row] for row in VALUES] if number == pa.float16() else VALUES
    path = write(tmp_path / "v.parquet", values=values, kind=lists(number))
    assert read(path) == (IDS, VALUES)


@pytest.mark.parametrize(
    ("ids", "made", "expected"),
    [
        (pa.array(IDS, pa.int32()), None, IDS),
        (pa.array([-1, 1, 2, 3, 4]), "integer", [2**64 - 1, 1, 2, 3, 4]),
        (pa.array(["a", "b", "c", "d", "e"]), "text", [text_id("item", each) for each in "abcde"]),
        (pa.array(["a", "b", "c", "d", "e"]).dictionary_encode(), None, [text_id("item", each) for each in "abcde"]),
        (pa.array(IDS), "text", [text_id("item", str(each)) for each in IDS]),
        (pa.array([str(each) for each in IDS]), "integer", IDS),
    ],
    ids=["int32", "negative", "text", "dictionary", "numbers as text", "text of digits"],
)
def test_ids_are_made_as_those_of_the_data(tmp_path, ids, made, expected):
    assert read(write(tmp_path / "v.parquet", ids), made=made)[0] == expected


def test_a_folder_holds_several_files_and_columns_can_be_named(tmp_path):
    more = pa.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    for name in ("b.parquet", "a.parquet"):
        write(tmp_path / name, popularity=pa.array(IDS), other=more)
    assert read(tmp_path) == (IDS * 2, VALUES * 2)
    assert read(tmp_path, id="popularity", vector="vector")[0] == IDS * 2
    for name in ("b.parquet", "a.parquet"):
        renamed = pq.read_table(tmp_path / name).rename_columns(["key", "embedding", "popularity", "other"])
        pq.write_table(renamed, tmp_path / name)
    with pytest.raises(
        DataError, match=r"a\.parquet: which column holds ids is not clear \(it may be: key, popularity"
    ):
        read(tmp_path)
    with pytest.raises(DataError, match=r"which column holds vectors is not clear .*; give .*item\.vector=COLUMN"):
        read(tmp_path, id="key")
    assert read(tmp_path, id="key", vector="embedding") == (IDS * 2, VALUES * 2)
    with pytest.raises(DataError, match=r"there is no column ids, which init_from\.vectors\.item\.id names; there are"):
        read(tmp_path, id="ids", vector="vector")


def changed(row: int, value: Any) -> list[Any]:
    return [*VALUES[:row], value, *VALUES[row + 1 :]]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"ids": [3, 1, 2, None, 7]},
            r"v\.parquet, row group 1: column id is null or NaN in row 1; leave out rows without",
        ),
        ({"ids": [3.0, 1.0, 2.5, 9.0, 7.0]}, r"row group 1: column id, row 0: 2\.5 is not a whole number, so it is no"),
        ({"ids": [3.0, 1.0, 2.0, 9.0, float("nan")]}, r"row group 2: column id is null or NaN in row 0"),
        ({"values": changed(3, None)}, r"row group 1: the vector of row 1 is null, or has"),
        ({"values": changed(3, [1.0, None])}, r"row group 1: the vector of row 1 is null, or has"),
        ({"values": changed(2, [1.0])}, r"row group 1: the vector of row 0 has dim 1, and the table"),
        ({"values": changed(1, [1.0, float("nan")])}, r"row group 0: the vector of row 1 is null, or .* not finite"),
        ({"values": changed(1, [1e300, 1.0]), "kind": pa.list_(pa.float64())}, r"row 1 is null, or .* not finite in"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, content, sentence):
    write(tmp_path / "v.parquet", **content)
    with pytest.raises(DataError, match=sentence):
        read(tmp_path)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (pa.list_(pa.float32(), 3), "column vector has vectors of dim 3, and the table has dim 2"),
        (pa.list_(pa.int64()), "column vector holds list<.*int64>; vectors are lists of float16, float32 or float64"),
    ],
)
def test_a_column_of_another_kind_is_refused_by_the_footer(tmp_path, kind, sentence):
    write(tmp_path / "v.parquet", values=[[1, 2, 3]] * 5, kind=kind)
    with pytest.raises(DataError, match=sentence):
        find_vectors(str(tmp_path), None, None, 2, KEY)


def test_files_that_are_missing_damaged_or_empty_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"item=.*nowhere does not exist or has no Parquet file; correct the path"):
        find_vectors(str(tmp_path / "nowhere"), None, None, 2, KEY)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"bad\.parquet: this is not a readable Parquet file"):
        find_vectors(str(tmp_path / "bad.parquet"), None, None, 2, KEY)
    write(tmp_path / "empty.parquet", pa.array([], pa.int64()), [])
    with pytest.raises(DataError, match="the files hold no rows"):
        find_vectors(str(tmp_path / "empty.parquet"), None, None, 2, KEY)
    with pytest.raises(DataError, match=r"item=nope://x is not a place pyarrow can open"):
        find_vectors("nope://x", None, None, 2, KEY)
    text = pq.read_table(write(tmp_path / "good.parquet"))
    pq.write_table(text.drop_columns(["vector"]), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"which column holds vectors is not clear \(it may be: none\)"):
        find_vectors(str(tmp_path / "none.parquet"), None, None, 2, KEY)
