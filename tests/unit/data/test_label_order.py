"""The warning of data that are sorted by a label, from the footers alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read import label_order
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.order import BlockSize

ROWS = 4000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_order, "block_size", lambda *_: BlockSize(1000, 16))


def warnings(folder: Path, values: Any, group_rows: int = 100, **keys: Any) -> tuple[str, ...]:
    pq.write_table(pa.table({"y": values, "u": range(len(values))}), folder / "a.parquet", row_group_size=group_rows)
    data = {"kind": "parquet", "path": str(folder), "labels": ["y"], "sparse": ["u"]}
    return inspect(ParquetDataset.model_validate({**data, "split": {"kind": "every", "n": 5}, **keys})).warnings


def drawn(share: float) -> Any:
    return (np.random.default_rng(0).random(ROWS) < share).astype(np.int8)


@pytest.mark.parametrize("kind", [pa.int8(), pa.bool_(), pa.float32(), pa.string()])
def test_data_sorted_by_label_are_reported(tmp_path: Path, kind: Any) -> None:
    labels = pa.array(np.sort(drawn(0.23))).cast(kind)
    keys = {"labels": [{"name": "y", "positive": "1"}]} if kind == pa.string() else {}
    [text] = warnings(tmp_path, labels, **keys)
    assert text.startswith("39 of 40 row groups have one value of label y")
    assert "mixes about 1,000 rows" in text


def test_labels_that_folders_name_are_reported(tmp_path: Path) -> None:
    for label in (0, 1):
        folder = tmp_path / f"y={label}"
        folder.mkdir()
        pq.write_table(pa.table({"u": range(ROWS // 2)}), folder / "a.parquet", row_group_size=100)
    data = {"kind": "parquet", "path": str(tmp_path), "labels": ["y"], "sparse": ["u"]}
    [text] = inspect(ParquetDataset.model_validate({**data, "split": {"kind": "every", "n": 5}})).warnings
    assert text.startswith("40 of 40 row groups have one value of label y")


@pytest.mark.parametrize("share", [0.5, 0.03, 0.002])
def test_data_in_random_order_are_not_reported(tmp_path: Path, share: float) -> None:
    """With a share of 0.002, most row groups of 100 rows have no positive."""
    assert not warnings(tmp_path, drawn(share))


def test_row_groups_of_few_rows_are_not_reported(tmp_path: Path) -> None:
    assert not warnings(tmp_path, drawn(0.3), group_rows=2)


def test_rare_positives_in_one_large_row_group_are_reported(tmp_path: Path) -> None:
    labels = np.sort((np.random.default_rng(0).random(200_000) < 0.001).astype(np.int8))
    [text] = warnings(tmp_path, labels, group_rows=20_000)
    assert text.startswith("9 of 10 row groups")


def test_only_what_is_not_mixed_as_a_whole_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_order, "block_size", lambda *_: BlockSize(ROWS, 16))
    assert not warnings(tmp_path, np.sort(drawn(0.23)))
    [text] = warnings(tmp_path, np.sort(drawn(0.23)), shuffle=False)
    assert "set dataset.shuffle=true" in text
