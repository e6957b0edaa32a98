"""DIEN learns how interests change: on sequences whose elements predict nothing without their order."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.jobs import evaluation, train

pytestmark = pytest.mark.slow

ROWS = {"train": 6000, "eval": 3000}
ITEMS, LENGTH = 40, 6
SEQUENCE = "{name: last_items, table: item, pooling: none, max_length: 6}"
NETWORKS = {
    "dien": ["model=dien", "model.attend={item: [last_items]}", f"dataset.sparse=[item, {SEQUENCE}]"],
    "din": ["model=din", "model.attend={item: [last_items]}", f"dataset.sparse=[item, {SEQUENCE}]"],
    "mean": ["model=ffnn", "dataset.sparse=[item, {name: last_items, table: item, pooling: mean}]"],
}


def write(folder: Path) -> None:
    """Write samples of people who lost one of two interests for the other, and like what the newer one is about.

    An interest is in items of even or of odd number. Half of a sequence is of each, so that only their order tells
    which came last. One label in ten is wrong, so the best possible AUC is 0.9.
    """
    for name, rows in ROWS.items():
        draw = np.random.default_rng(rows)
        newer = draw.integers(0, 2, rows)
        first, last = (
            (2 * draw.integers(0, ITEMS // 2, (rows, LENGTH // 2)).T + each).T for each in (1 - newer, newer)
        )
        item = draw.integers(0, ITEMS, rows)
        liked = (item % 2 == newer) ^ (draw.random(rows) < 0.1)
        columns = {"item": item, "last_items": [*np.hstack([first, last])], "liked": liked.astype(np.int8)}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    data = {"kind": "parquet", "path": str(folder), "labels": ["liked"], "dense": [], "sparse": ["item"]}
    split = {"kind": "files", "train": ["train.*"], "eval": ["eval.*"]}
    (folder / "data.yaml").write_text(yaml.safe_dump(data | {"split": split}))


def test_only_a_network_that_knows_their_order_learns_from_them(tmp_path: Path) -> None:
    write(tmp_path)
    settings = [
        *("mode=sync", "cluster=embedded", "model.dim=8", "model.hidden=[16]", "optimizer=adam"),
        *("optimizer.embedding.lr=0.01", "optimizer.dense.lr=0.01", "embedding.init_bound=0.1"),
        *("train.batch_size=100", "train.epochs=4", "train.threads=1", "embedding.memory=64MiB"),
    ]
    given = [f"dataset={tmp_path / 'data.yaml'}", *settings, "checkpoint.at_end=false"]
    auc = {name: evaluation(train([*given, *words], tmp_path / name))["auc"] for name, words in NETWORKS.items()}
    assert auc["dien"] > 0.87, auc
    assert max(auc["din"], auc["mean"]) < 0.55, auc
