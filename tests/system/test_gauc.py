"""GAUC of a job: exact, whatever steps, loaders and ranks the samples of a group are spread over."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc
from typer.testing import CliRunner

from persia_cli.main import app
from tests.support.jobs import evaluation, train

ROWS, USERS = 1200, 40
CLUSTERS = [
    ["cluster=embedded"],
    pytest.param(
        ["cluster=local", "cluster.nn_workers=2", "cluster.data_loaders=2"],
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["one rank", "two ranks"])
def test_it_is_that_of_every_group(cluster: list[str], tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    user, item = draw.integers(0, USERS, ROWS), draw.integers(0, 30, ROWS)
    columns: dict[str, Any] = {"user": user, "item": item}
    columns["y"] = (draw.random(ROWS) < 0.2 + 0.6 * (item % 2)).astype(np.float32)
    columns["split"] = np.where(np.arange(ROWS) % 2, "train", "eval")
    pq.write_table(pa.table(columns), tmp_path / "visits.parquet", row_group_size=250)
    words = [
        *("dataset=parquet", f"dataset.path={tmp_path / 'visits.parquet'}", "dataset.labels=[y]"),
        *("dataset.sparse=[item]", "dataset.split={kind: column, column: split, train: train, eval: eval}"),
        *("dataset.group_by=user", "model.hidden=[8]", "model.dim=4", "mode=sync", "train.batch_size=32"),
        *("train.epochs=1", "embedding.capacity=4096"),
    ]
    result = train([*words, *cluster], tmp_path / "run")
    scores = tmp_path / "scores.parquet"
    given = [str(tmp_path / "run"), str(tmp_path / "visits.parquet"), "-o", str(scores), "--logits"]
    done = CliRunner().invoke(app, ["predict", *given, "cluster=embedded", "cluster.nn_workers=1"])
    assert done.exit_code == 0, done.output
    logits = pq.read_table(scores).column("y_logit").to_numpy()
    figures, sizes = [], []
    for number in range(USERS):
        own = (user == number) & (columns["split"] == "eval")
        z, y = torch.from_numpy(logits[own]), torch.from_numpy(columns["y"][own])
        if 0 < y.sum() < len(y):
            figures.append(float(binary_auroc(z.double().sigmoid(), y.long())))
            sizes.append(len(y))
    line = evaluation(result)
    assert line["gauc"] == pytest.approx(np.average(figures, weights=sizes), abs=1e-6)
    assert (line["eval_samples"], line["step"]) == (ROWS // 2, 19)
    assert not any("gauc" in key for each in result.metrics if each["split"] == "train" for key in each)
