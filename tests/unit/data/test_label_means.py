"""The mean of each label over training rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.schema.dataset import GeneratedDataset, ParquetDataset
from persia_cli.data.read import label_means as module
from persia_cli.data.read.label_means import label_means
from persia_cli.data.read.source import open_source
from persia_cli.errors import DataError

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


def test_weights_of_zero_leave_no_mean(tmp_path):
    assert label_means(write(tmp_path, y=[0.0] * ROWS, stars=[5] * ROWS, w=[0.0] * ROWS), 0, {}) == (None, None)


def test_labels_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DataError, match="label"):
        label_means(write(tmp_path, y=[2.0] * ROWS, stars=[5] * ROWS), 0, {})


def test_generated_samples_have_one_too():
    data = GeneratedDataset.model_validate(
        {
            "kind": "generated",
            "generator": {"train_rows": 5000, "eval_rows": 10, "dense": 2, "cardinalities": [50], "label_rate": 0.1},
        }
    )
    labels = open_source(data, "train", 3).read(0, 0, 5000).labels
    assert label_means(data, 3, {}) == pytest.approx([labels.mean()], rel=1e-6)
