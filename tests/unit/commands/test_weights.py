"""Samples that weigh nothing end a job with a sentence that names the column."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 600
WORDS = (
    "dataset=parquet", "dataset.path=rows.parquet", "dataset.labels=[y]", "dataset.sparse=[user]",
    "dataset.weight=importance", "dataset.split={kind: every, n: 3}", "cluster=embedded", "mode=sync",
    "model.hidden=[4]", "model.dim=4", "train.batch_size=100", "train.log_every_steps=2", "--run-dir", "run",
)  # fmt: skip
EVALUATES = np.arange(ROWS) % 3 == 0


def write(weights: np.ndarray, labels: np.ndarray | None = None) -> None:
    drawn = np.random.default_rng(0)
    y = drawn.integers(0, 2, ROWS).astype(np.float32) if labels is None else labels
    columns = {"y": y, "user": drawn.integers(0, 50, ROWS), "importance": weights.astype(np.float32)}
    pq.write_table(pa.table(columns), "rows.parquet")


def test_training_samples_without_weight_are_an_error(persia) -> None:
    write(np.zeros(ROWS))
    ended = persia("train", *WORDS, "--dry-run")
    assert ended.code == 2
    last = ended.err.splitlines()[-1]
    assert "all 400 training samples weigh 0 in column importance, which dataset.weight names" in last


def test_evaluation_samples_without_weight_are_an_error(persia) -> None:
    write(np.where(EVALUATES, 0.0, 1.0))
    ended = persia("train", *WORDS)
    assert ended.code == 2
    assert not Path("run").exists()
    assert "all 200 evaluation samples weigh 0 in column importance" in ended.err.splitlines()[-1]


@pytest.mark.parametrize(("label", "why"), [(0.0, "positive"), (1.0, "negative")])
def test_undefined_metrics_have_a_reason(persia, label: float, why: str) -> None:
    drawn = np.random.default_rng(1).integers(0, 2, ROWS)
    write(np.ones(ROWS), np.where(EVALUATES, label, drawn).astype(np.float32))
    ended = persia("train", *WORDS)
    assert ended.code == 0, ended.err
    [note] = [line for line in ended.err.splitlines() if "not defined" in line]
    assert note.startswith("note      AUC, ")
    assert note.endswith(f"no evaluation sample is {why}")
