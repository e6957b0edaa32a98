"""Labels: means over training rows, those that are not known, and the warning of data sorted by a label."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read import facts
from persia_cli.data.read import label_values as module
from persia_cli.data.read.facts import inspect
from persia_cli.data.read.label_values import label_means
from persia_cli.data.read.masked_labels import fill_chain, weight_totals, without_unknown
from persia_cli.data.read.order import BlockSize

ROWS = 3000


def write(folder: Path, **columns: object) -> ParquetDataset:
    """Rows of which every third evaluates; the feature column of a row cannot be read, nor the dense one."""
    names = {"user": pa.array([[1.5]] * ROWS), "x": pa.array(["a"] * ROWS)}
    pq.write_table(pa.table({**names, **columns}), folder / "a.parquet", row_group_size=700)
    return ParquetDataset.model_validate(
        {
            "kind": "parquet",
            "path": str(folder),
            "labels": ["y", {"name": "stars", "at_least": 4}],
            "sparse": ["user"],
            "dense": ["x"],
            "weight": "w" if "w" in columns else None,
            "split": {"kind": "every", "n": 3},
        }
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_they_are_those_of_numpy_and_read_nothing_but_labels(tmp_path, monkeypatch, weighted):
    monkeypatch.setattr(module, "_ROWS", 301)
    draw = np.random.default_rng(0)
    y, stars, w = draw.normal(5.0, 3.0, ROWS), draw.integers(1, 6, ROWS), draw.random(ROWS).astype(np.float32)
    data = write(tmp_path, y=y, stars=stars, **({"w": w} if weighted else {}))
    train = np.arange(ROWS) % 3 != 0
    weights = w[train] if weighted else None
    expected = [np.average(values[train], weights=weights) for values in (y, stars >= 4)]
    assert label_means(data, 0, {"y": "identity"}) == pytest.approx(expected, rel=1e-6)


def test_rows_without_a_label_do_not_count_for_it(tmp_path):
    draw = np.random.default_rng(0)
    y, stars, w = (draw.integers(0, 2, ROWS), draw.integers(1, 6, ROWS), draw.random(ROWS).astype(np.float32))
    known = draw.random(ROWS) < 0.4
    data = write(tmp_path, y=y, stars=pa.array(stars, mask=~known), w=w)
    train = np.arange(ROWS) % 3 != 0
    liked = np.average(stars[train & known] >= 4, weights=w[train & known])
    assert label_means(data, 0, {}) == pytest.approx([np.average(y[train], weights=w[train]), liked], rel=1e-6)
    chain = np.where(known, stars >= 4, 0)[train & (known | (y == 0))]
    liked = np.average(chain, weights=w[train & (known | (y == 0))])
    assert label_means(data, 0, {}, is_chain=True)[1] == pytest.approx(liked, rel=1e-6)


NAN = np.nan
LABELS = np.array([[1, NAN], [0, 1], [NAN, NAN], [1, 0]], np.float32)
WEIGHTS = np.array([1, 2, 4, 8], np.float32)


def test_they_have_no_weight_in_their_task_alone():
    labels, weights = without_unknown(LABELS, WEIGHTS)
    assert labels.tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert weights.tolist() == [[1, 0], [2, 2], [0, 0], [8, 8]]
    assert without_unknown(LABELS, None)[1].tolist() == [[1, 0], [1, 1], [0, 0], [1, 1]]
    assert weight_totals(LABELS, WEIGHTS).tolist() == [11, 10]
    assert weight_totals(LABELS, None).tolist() == [3, 2]


def test_in_a_chain_what_follows_a_zero_is_zero():
    labels = np.array([[0, NAN, NAN], [1, NAN, 1], [NAN, NAN, NAN], [1, 0, NAN]], np.float32)
    fill_chain(labels)
    expected = np.array([[0, 0, 0], [1, NAN, 1], [NAN, NAN, NAN], [1, 0, 0]], np.float32)
    assert np.array_equal(labels, expected, equal_nan=True)


SORTED_ROWS = 4000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "block_size", lambda *_: BlockSize(1000, 16))


def warnings(folder: Path, values: Any, group_rows: int = 100, **keys: Any) -> tuple[str, ...]:
    pq.write_table(pa.table({"y": values, "u": range(len(values))}), folder / "a.parquet", row_group_size=group_rows)
    data = {"kind": "parquet", "path": str(folder), "labels": ["y"], "sparse": ["u"]}
    return inspect(ParquetDataset.model_validate({**data, "split": {"kind": "every", "n": 5}, **keys})).warnings


def drawn(share: float) -> Any:
    return (np.random.default_rng(0).random(SORTED_ROWS) < share).astype(np.int8)


@pytest.mark.parametrize("kind", [pa.int8(), pa.bool_(), pa.float32(), pa.string()])
def test_data_sorted_by_label_are_reported(tmp_path: Path, kind: Any) -> None:
    labels = pa.array(np.sort(drawn(0.23))).cast(kind)
    keys = {"labels": [{"name": "y", "positive": "1"}]} if kind == pa.string() else {}
    [text] = warnings(tmp_path, labels, **keys)
    assert text.startswith("39 of 40 row groups have one value of label y")
    assert "mixes about 1,000 rows" in text


@pytest.mark.parametrize("share", [0.5, 0.03, 0.002])
def test_data_in_random_order_are_not_reported(tmp_path: Path, share: float) -> None:
    """With a share of 0.002, most row groups of 100 rows have no positive."""
    assert not warnings(tmp_path, drawn(share))


def test_only_what_is_not_mixed_as_a_whole_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "block_size", lambda *_: BlockSize(SORTED_ROWS, 16))
    assert not warnings(tmp_path, np.sort(drawn(0.23)))
    [text] = warnings(tmp_path, np.sort(drawn(0.23)), shuffle=False)
    assert "set dataset.shuffle=true" in text
