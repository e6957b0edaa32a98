"""Rows with values that cannot be used: left out with weight 0, at their place in the order of samples."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read.bad_rows import leaving_out
from persia_cli.data.read.batch import Batch, Ids
from persia_cli.data.read.decode import decode_ids
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.label_values import label_ends
from persia_cli.data.read.row_groups import RowGroupReader
from persia_cli.data.read.slices import RowPiece
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError

ROWS, BAD = 100, (7, 41)
COLUMNS: dict[str, list[Any]] = {
    "u": [float(row % 9) for row in range(ROWS)],
    "x": [row / ROWS for row in range(ROWS)],
    "v": [[row, 1.0] for row in range(ROWS)],
    "w": [1.0 + row % 3 for row in range(ROWS)],
    "y": [float(row % 2) for row in range(ROWS)],
    "g": [row % 5 for row in range(ROWS)],
}
WRONG = {"u": 1.5, "x": float("nan"), "v": [1.0], "w": -1.0, "y": 7.0}


def dataset(folder: Path, wrong: str | None, **keys: Any) -> ParquetDataset:
    columns = {name: list(values) for name, values in COLUMNS.items()}
    for row in BAD if wrong else ():
        columns[str(wrong)][row] = WRONG[str(wrong)]
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=30)
    settings = {"kind": "parquet", "path": str(folder / "a.parquet"), "labels": ["y"], "sparse": ["u"]}
    settings |= {"dense": ["x", "v"], "weight": "w", "group_by": "g", "split": {"kind": "eval"}} | keys
    found = inspect(ParquetDataset.model_validate(settings)).settled
    assert found is not None
    return found


def read(found: ParquetDataset) -> Batch:
    source = open_source(found, "eval", 1)
    try:
        return source.read(0, 0, source.rows)
    finally:
        source.close()


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_bad_rows_weigh_nothing_and_all_others_are_what_they_are(wrong: str, tmp_path: Path) -> None:
    right = read(dataset(tmp_path, None))
    batch = read(dataset(tmp_path, wrong, max_bad_rows=len(BAD)))
    assert batch.bad == BAD
    assert f"column {wrong}" in batch.why
    good = np.setdiff1d(np.arange(ROWS), BAD)
    assert batch.weights is not None
    assert not batch.weights[list(BAD)].any()
    for name in ("dense", "labels", "weights", "query_ids"):
        np.testing.assert_array_equal(getattr(batch, name)[good], getattr(right, name)[good])
    np.testing.assert_array_equal(batch.ids[good], right.ids[good])
    assert np.isfinite(batch.dense).all()


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_one_more_than_allowed_is_an_error(wrong: str, tmp_path: Path) -> None:
    # The row groups with bad rows hold one each, so that only the coordinator, which counts all, refuses the second.
    assert read(dataset(tmp_path, wrong, max_bad_rows=1)).bad == BAD
    with pytest.raises(DataError, match=f"column {wrong}"):
        read(dataset(tmp_path, wrong))


@pytest.mark.parametrize("kind", ["float", "text", "list"])
def test_many_bad_ids_of_a_row_group_are_found_at_once(kind: str, tmp_path: Path) -> None:
    rows = 2000
    bad = np.arange(5, rows, 2)
    ids: list[Any] = [1.5 if row in set(bad.tolist()) else 7.0 for row in range(rows)]
    if kind != "float":
        ids = ["x" if value == 1.5 else "7" for value in ids]
    column = pa.array([["7", value] for value in ids] if kind == "list" else ids)
    pq.write_table(pa.table({"u": column, "y": [0, 1] * (rows // 2)}), tmp_path / "a.parquet")
    settings = {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "labels": ["y"], "max_bad_rows": rows}
    settings |= {"sparse": [{"name": "u", "ids": "integer"}], "split": {"kind": "eval"}}
    facts = inspect(ParquetDataset.model_validate(settings))
    found, settled = facts.found, facts.settled
    assert found is not None
    assert settled is not None
    with RowGroupReader(found.filesystem) as reader:
        piece = RowPiece(found.groups[0], 0, reader.read(found.groups[0], ["u"]), None)
    decodings = []

    def decode(each: RowPiece) -> Ids:
        decodings.append(each)
        return decode_ids(each.table.column("u"), settled.sparse[0], kind == "list", each, None, Counter())

    _, left_out, why = leaving_out(piece, rows, decode)
    assert left_out.tolist() == bad.tolist()
    assert "row 5" in why
    assert len(decodings) == 2


def test_a_wrong_label_is_found_in_the_footers(tmp_path: Path) -> None:
    rows = 40_000
    labels = np.arange(rows) % 2
    labels[rows - 5] = 7
    pq.write_table(pa.table({"u": np.arange(rows), "y": labels}), tmp_path / "a.parquet", row_group_size=100)
    split = {"kind": "every", "n": 10}
    settings = {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "labels": ["y"], "sparse": ["u"]}
    found = inspect(ParquetDataset.model_validate({**settings, "split": split})).found
    assert found is not None
    with pytest.raises(DataError, match=r"7\.0"):
        label_ends(found, "train", {})
    label_ends(found, "train", {"y": "identity"})


@pytest.mark.parametrize("rule", [{"positive": 2**60 + 1}, {"at_least": 2**60 + 1}])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_rules_of_labels_compare_exactly(rule: dict[str, int], kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"y": pa.array([2**60, 2**60 + 1, None, 2**60], kind), "u": [1, 2, 3, 4], "z": [0, 1, 1, 0]})
    pq.write_table(table, tmp_path / "a.parquet")
    settings = {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "sparse": ["u"], "split": {"kind": "eval"}}
    found = inspect(ParquetDataset.model_validate({**settings, "labels": [{"name": "y", **rule}, "z"]})).settled
    assert found is not None
    np.testing.assert_array_equal(read(found).labels[:, 0], [0.0, 1.0, np.nan, 0.0])


def test_an_empty_list_before_the_first_vector_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an empty list in row 0 of dense column v, whose lists need 2 each"):
        read(_vectors(tmp_path, [[], [1.0, 2.0]]))


def _vectors(folder: Path, vectors: list[list[float]]) -> ParquetDataset:
    pq.write_table(pa.table({"v": pa.array(vectors, pa.list_(pa.float32())), "y": [0, 1]}), folder / "a.parquet")
    settings = {"kind": "parquet", "path": str(folder / "a.parquet"), "labels": ["y"], "dense": ["v"]}
    found = inspect(ParquetDataset.model_validate({**settings, "split": {"kind": "eval"}})).settled
    assert found is not None
    return found
