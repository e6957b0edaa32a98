"""Every pair of a row optimizer and a dense one computes what plain torch does, on any number of ranks.

The tables of one job have all row optimizers between them, most with their own penalties; the last step of an epoch
is short, so that of four ranks two have no sample in it.
"""

from pathlib import Path

import pytest

from tests.support.jobs import launch, losses, plan
from tests.support.lists import STEPS, lists_job
from tests.support.step_lock import assert_every_step_agrees

TABLES = [
    "embedding.tables.user={optimizer: {kind: rowwise_adagrad, lr: 0.05, l2: 0.05, initial_accumulator_value: 0.1}}",
    "embedding.tables.tags={dim: 6, optimizer: {kind: sgd, lr: 0.5, l2: 0.01}}",
    "embedding.tables.item={optimizer: {kind: adagrad, lr: 0.05, weight_decay: 0.2, initial_accumulator_value: 0.1}}",
    "embedding.tables.place={dim: 4, optimizer: {kind: ftrl, lr: 0.1, l1: 1e-4, l2: 1e-3, "
    "initial_accumulator_value: 0.1}}",
    "embedding.tables.words={optimizer: {kind: adam, lr: 0.01, l2: 0.05, weight_decay: 0.1}, init_bound: 0.2}",
]
DENSE = {
    "sgd": "optimizer.dense={kind: sgd, lr: 0.1}",
    "adagrad": "optimizer.dense={kind: adagrad, lr: 0.05, eps: 1e-2}",
    "adam": "optimizer.dense={kind: adam, lr: 0.001}",
    "adamw": "optimizer.dense={kind: adamw, lr: 0.001, weight_decay: 0.1}",
}
RANKS = {
    1: ["cluster=embedded"],
    2: ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"],
    4: ["cluster=local", "cluster.nn_workers=4", "cluster.embedding_servers=2"],
}


@pytest.mark.processes
@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("ranks", [1, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4))])
def test_every_weight_agrees_after_each_step(ranks: int, dense: str, tmp_path: Path) -> None:
    words = [
        *lists_job(tmp_path),
        *TABLES,
        DENSE[dense],
        *RANKS[ranks],
        "checkpoint.every_steps=1",
        "checkpoint.keep=null",
    ]
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)
