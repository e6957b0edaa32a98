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


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (np.zeros(ROWS), "all 400 training samples weigh 0 in column importance, which dataset.weight names"),
        (np.where(EVALUATES, 0.0, 1.0), "all 200 evaluation samples weigh 0 in column importance"),
    ],
    ids=["training", "evaluation"],
)
def test_samples_without_weight_are_an_error(persia, weights: np.ndarray, sentence: str) -> None:
    columns = {"y": np.arange(ROWS) % 2 * 1.0, "user": np.arange(ROWS) % 50, "importance": weights.astype(np.float32)}
    pq.write_table(pa.table(columns), "rows.parquet")
    ended = persia("train", *WORDS)
    assert (ended.code, Path("run").exists()) == (2, False)
    assert sentence in ended.err.splitlines()[-1]
