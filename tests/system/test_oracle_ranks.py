"""Two ranks of synchronous training compute what one rank does, and what plain torch does."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.jobs import CRITEO_FFNN, launch, losses, plan, train
from tests.support.lists import STEPS, hide_labels, lists_job
from tests.support.oracle import Oracle
from tests.support.step_lock import assert_every_step_agrees

pytestmark = pytest.mark.processes

TWO_RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]
KINDS = [
    "{kind: sgd, lr: 0.1}",
    "{kind: adam, lr: 0.001, eps: 1e-3}",
    "{kind: adagrad, lr: 0.05, initial_accumulator_value: 0.1}",
]
TABLES = ", ".join(f"C{number}: {{optimizer: {KINDS[number % 3]}}}" for number in range(1, 27))


@pytest.mark.slow
def test_fifty_steps_have_the_losses_of_one_rank_and_of_plain_torch(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", "seed=1", f"embedding.tables={{{TABLES}}}"]
    words += ["optimizer.dense.eps=1e-3", "checkpoint.at_end=false"]
    words += ["train.steps=50", "train.batch_size=128", "train.log_every_steps=1"]
    job = plan([*words, *TWO_RANKS], tmp_path / "two")
    two = losses(launch(job))
    oracle = Oracle(job.run, 50)
    np.testing.assert_allclose(two, [oracle.step(step) for step in range(50)], rtol=0, atol=1e-5)
    one = losses(train([*words, "cluster=embedded"], tmp_path / "one"))
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_every_weight_agrees_though_a_rank_has_no_sample_in_the_last_step(tmp_path: Path) -> None:
    job = plan([*lists_job(tmp_path), *TWO_RANKS, "checkpoint={every_steps: 1, keep: null}"], tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)


ROWS = [
    "{kind: adam, lr: 0.01, l2: 0.02, weight_decay: 0.3, eps: 1e-3}",
    "{kind: rowwise_adagrad, lr: 0.05, l2: 0.01}",
    "{kind: rowwise_adam, lr: 0.01, l2: 0.02, eps: 1e-3}",
]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ROWS, ids=["adam", "rowwise_adagrad", "rowwise_adam"])
def test_batch_normalisation_dice_and_penalties_of_rows(optimizer: str, criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", "train.steps=6", "train.batch_size=64"]
    words += ["model.norm=batch", "model.activation=dice", "model.hidden=[64, 32]", "train.log_every_steps=1"]
    words += [
        f"optimizer.embedding={optimizer}",
        "optimizer.dense.eps=1e-3",
        "checkpoint.every_steps=1",
        "checkpoint.keep=null",
    ]
    job = plan([*words, "train.losses={label: {kind: focal, smoothing: 0.1}}", *TWO_RANKS], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), 6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairwise", "bpr", "bce"])
def test_labels_with_separate_losses(kind: str, tmp_path: Path) -> None:
    """Some labels of each task are not known."""
    kinds = f"{{click: {{kind: {kind}, weight: 0.5}}, buy: {{kind: huber}}}}"
    words = [f"train.losses={kinds}", "optimizer.dense.clip_norm=0.05", "dataset.group_by=user"]
    words += ["train.task_weights=uncertainty"]
    words = [*lists_job(tmp_path), *TWO_RANKS, *words, "checkpoint={every_steps: 1, keep: null}"]
    hide_labels(tmp_path, buy=0.6)
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)
