"""Synchronous training in float32 is what plain torch computes, step by step, for every optimizer."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.jobs import CRITEO_FFNN, launch, losses, plan
from tests.support.lists import STEPS, lists_job
from tests.support.oracle import Oracle
from tests.support.step_lock import assert_every_step_agrees

EMBEDDED = ["cluster=embedded", "mode=sync", "train.log_every_steps=1", "seed=1"]
TAME_ADAGRAD = ["optimizer.embedding.initial_accumulator_value=0.1", "optimizer.dense.initial_accumulator_value=0.1"]
TAME_ADAM = ["optimizer.embedding.eps=1e-3", "optimizer.dense.eps=1e-3"]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("ffnn", ["optimizer=sgd"]),
        ("ffnn", ["optimizer=adagrad", *TAME_ADAGRAD]),
        ("ffnn", ["optimizer=adam", *TAME_ADAM]),
        ("dlrm", ["optimizer=adagrad", *TAME_ADAGRAD]),
    ],
    ids=["ffnn-sgd", "ffnn-adagrad", "ffnn-adam", "dlrm-adagrad"],
)
def test_fifty_steps_have_the_losses_of_plain_torch(
    model: str, optimizer: list[str], criteo_rows: Path, tmp_path: Path
) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", f"model={model}", *EMBEDDED, *optimizer]
    job = plan([*words, "train.steps=50", "train.batch_size=128", "checkpoint.at_end=false"], tmp_path / "run")
    ours = losses(launch(job))
    oracle = Oracle(job.run, 50)
    theirs = [oracle.step(step) for step in range(50)]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert ours[-1] < ours[0] - 0.02


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_every_weight_agrees_after_each_step(optimizer: str, criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, f"optimizer={optimizer}"]
    job = plan([*words, "train.steps=8", "train.batch_size=64", "checkpoint.every_steps=1"], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), 8)


@pytest.mark.parametrize("stack", ["null", "{rounds: 3, size: 25}"], ids=["rows", "hash-stack"])
def test_lists_weights_tasks_and_a_short_last_batch(stack: str, tmp_path: Path) -> None:
    """Pooled by mean and square root, and as a sequence, the items are of one table, which may be a hash stack."""
    words = [*lists_job(tmp_path), "checkpoint.every_steps=1", f"embedding.tables.item={{hash_stack: {stack}}}"]
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)
