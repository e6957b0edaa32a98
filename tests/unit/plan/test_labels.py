"""Labels and weights from which nothing can be learned are refused before training."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persia_cli.config.compose import compose_run
from persia_cli.data.read.facts import inspect
from persia_cli.errors import DataError
from persia_cli.plan.labels import require_labels

ROWS = 400
EVAL = np.arange(ROWS) % 4 == 0
MIXED = np.arange(ROWS) // 200 % 2
SOFTMAX = "train.losses={y: {kind: in_batch_softmax}}"
TOWERS = ["model=two_tower", "model.user=[u]", "model.item=[i]"]
EACH = "eval.every_steps=5"
BY_AUC = ["checkpoint.best_by=auc", EACH]
ONE_CLASS = np.where(EVAL, 0, np.arange(ROWS) % 2)


def check(folder: Path, words: list[str], **columns: object) -> None:
    table = {"u": np.arange(ROWS) % 7, "i": np.arange(ROWS) % 5} | {k: pa.array(v) for k, v in columns.items()}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=30)
    labels = ",".join(name for name in columns if name != "w")
    weight = ["dataset.weight=w"] if "w" in columns else []
    data = ["dataset=parquet", f"dataset.path='{folder}'", f"dataset.labels=[{labels}]", "dataset.sparse=[u, i]"]
    run = compose_run([*data, "dataset.split={kind: every, n: 4}", *weight, *words])
    require_labels(run, inspect(run.dataset), trains=True)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"y": MIXED}, BY_AUC),
        ({"y": np.zeros(ROWS)}, []),
        ({"y": np.ones(ROWS)}, ["train.losses={y: {kind: mse}}"]),
        ({"y": np.ones(ROWS)}, [SOFTMAX, *TOWERS]),
        ({"y": ONE_CLASS}, [EACH, "checkpoint.best_by=log_loss"]),
        ({"y": MIXED, "z": [None, 1, 0, 0] * 100}, []),
        ({"y": MIXED, "w": np.where(np.arange(ROWS) < 4, 1.0, 0.0)}, []),
    ],
)
def test_what_can_be_trained_is_taken(tmp_path, columns, words):
    check(tmp_path, words, **columns)


@pytest.mark.parametrize(
    ("columns", "words", "complaint"),
    [
        ({"y": np.ones(ROWS)}, [], "label y is 1 in all training rows.* add rows with label 0, or .*in_batch_softmax"),
        ({"y": np.where(EVAL, 0, 1)}, [], "label y is 1 in all training rows"),
        ({"y": MIXED, "z": np.ones(ROWS)}, [], "label z is 1 in all training rows"),
        ({"y": np.ones(ROWS)}, ["train.losses={y: {kind: pairwise}}"], "compares positive rows with negative ones"),
        ({"y": np.zeros(ROWS)}, [SOFTMAX], "learns from positive ones"),
        ({"y": MIXED, "z": pa.nulls(ROWS, pa.int8())}, [], "label z is null in all training rows"),
        ({"y": ONE_CLASS}, BY_AUC, "checkpoint.best_by=auc .* label y "),
        ({"y": MIXED, "z": np.where(EVAL, None, MIXED)}, ["train.stop_early.metric=auc_z", EACH], "auc_z .* label z "),
        ({"y": ONE_CLASS}, ["optimizer.dense.schedule.kind=reduce_on_plateau", EACH], "metric=auc needs rows of both"),
        ({"y": np.where(np.arange(ROWS) == 396, 2.0, MIXED)}, [], "values of label column y are unusable"),
        ({"y": MIXED, "w": np.zeros(ROWS)}, [], "all 300 training samples weigh 0 in column w"),
        ({"y": MIXED, "w": np.where(EVAL, 0.0, 1.0)}, [], "all 100 evaluation samples weigh 0 in column w"),
        ({"y": MIXED, "z": np.where(np.arange(ROWS) % 3, MIXED, -1)}, [], "if -1 stands for .* write null for it"),
    ],
)
def test_what_cannot_is_refused(tmp_path, columns, words, complaint):
    with pytest.raises(DataError, match=complaint):
        check(tmp_path, words, **columns)
