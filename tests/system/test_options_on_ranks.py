"""Options of a training, on two ranks: in sync they compute the same as one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persia_cli.engines.job import JobResult
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from persia_cli.training.dense_state import WEIGHTS, read_tensors
from tests.support.checkpoints import read_rows
from tests.support.jobs import evaluation, losses, train

ROWS = 184
"""Of which 138 train: in batches of 32 the last one of an epoch has 10 samples, all of the first rank."""
TWO_RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
ADAM = "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-3}"
TASKS = ["dataset.labels=[click, visits, price]"]


TOGETHER = [
    *TASKS,
    "train.losses={click: {kind: focal, smoothing: 0.1, weight: 2}, visits: {kind: poisson}, price: {kind: huber}}",
    *("dataset.weight=w", "model.output_bias=base_rate", "model.activation=dice", "model.norm=batch"),
    "model.dropout=0",
    "optimizer.embedding={kind: ftrl, lr: 0.1, l1: 0.001, l2: 0.01, schedule: {kind: one_cycle, over_steps: 9}}",
    "embedding.tables.item={optimizer: {kind: adam, lr: 0.01, eps: 1e-3, l2: 0.01, weight_decay: 0.1}}",
    "optimizer.dense={kind: adamw, lr: 0.01, eps: 1e-3, weight_decay: 0.1, clip_norm: 0.5,"
    " schedule: {kind: one_cycle, over_steps: 9}}",
    *("train.stop_early={metric: loss, patience: 2, min_delta: 1000}", "eval.every_steps=2"),
]
"""Compatible arguments; no evaluation is better by 1,000, so the third, after step 6, ends the job."""


def words_of(folder: Path, *options: str) -> list[str]:
    """Write samples into a folder; returns the arguments of a job of 10 steps on them."""
    draw = np.random.default_rng(4)
    columns: dict[str, Any] = {
        "user": draw.integers(0, 40, ROWS),
        "item": draw.integers(0, 25, ROWS),
        "x": draw.normal(size=ROWS),
        "z": draw.normal(size=ROWS),
        "w": draw.exponential(size=ROWS),
    }
    taste = 0.7 * columns["x"] + 0.5 * (columns["user"] % 5 - 2)
    columns["click"] = draw.random(ROWS) < 1 / (1 + np.exp(-taste))
    columns["visits"] = draw.poisson(np.exp(0.3 * columns["x"]))
    columns["price"] = taste + draw.normal(size=ROWS)
    pq.write_table(pa.table(columns), folder / "samples.parquet", row_group_size=50)
    data = {"kind": "parquet", "path": str(folder / "samples.parquet"), "labels": ["click"], "dense": ["x", "z"]}
    data |= {"sparse": ["user", "item"], "split": {"kind": "every", "n": 4}}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    groups = [word for word in options if "." not in word.partition("=")[0]]
    network = [] if groups else ["model=ffnn", "model.hidden=[16, 8]"]
    return [
        *(f"dataset={folder / 'data.yaml'}", "mode=sync", *network, *groups, "model.dim=4", ADAM),
        *("embedding.memory=16MiB", "train.batch_size=32", "train.epochs=2", "train.log_every_steps=1"),
        *(word for word in options if word not in groups),
    ]


def assert_same_training(two: JobResult, one: JobResult, precision: float = 1e-5) -> None:
    """Require equal losses, evaluations and saved weights, but for the order in which floats are added up."""
    np.testing.assert_allclose(losses(two), losses(one), rtol=precision)
    figures = [
        {k: v for k, v in evaluation(each).items() if k.startswith(("loss", "auc", "rmse"))} for each in (two, one)
    ]
    assert figures[0] == pytest.approx(figures[1], rel=10 * precision)
    assert [evaluation(each)[key] for key in ("step", "rows", "unknown") for each in (two, one)][::2] == [
        evaluation(one)[key] for key in ("step", "rows", "unknown")
    ]
    ours, theirs = (checkpoint_folder(each.run_dir / CHECKPOINTS, evaluation(each)["step"]) for each in (two, one))
    weights, expected = (read_tensors(each / "dense" / WEIGHTS)[0] for each in (ours, theirs))
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, rtol=100 * precision, atol=10 * precision, err_msg=name)
    tables, rows = read_rows(ours), read_rows(theirs)
    for name, table in rows.items():
        np.testing.assert_array_equal(tables[name].ids, table.ids, err_msg=name)
        np.testing.assert_allclose(tables[name].embedding, table.embedding, 100 * precision, 10 * precision)


@pytest.mark.slow
def test_many_options_at_once(tmp_path: Path) -> None:
    words = words_of(tmp_path, *TOGETHER)
    two = train([*words, *TWO_RANKS], tmp_path / "two")
    assert len(losses(two)) == 6
    assert_same_training(two, train([*words, "cluster=embedded"], tmp_path / "one"))
