"""A step that is computed in parts is the step on the whole batch: rows, dense weights, schedules, every mode."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.jobs import evaluation, launch, losses, plan, train
from tests.support.lists import STEPS, lists_job
from tests.support.step_lock import assert_every_step_agrees

PARTS = ["train.accumulate=4", "train.log_every_steps=1"]
CLIPPED = ["optimizer.dense={kind: adamw, lr: 0.001, weight_decay: 0.1, clip_norm: 0.05, eps: 1e-6}"]
TWO_RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]


@pytest.mark.parametrize(
    "cluster",
    [[], pytest.param(TWO_RANKS, marks=pytest.mark.slow)],
    ids=["one rank", "two ranks"],
)
def test_every_weight_and_row_is_that_of_plain_torch_on_the_whole_batch(cluster: list[str], tmp_path: Path) -> None:
    """Lists, sequences, weights, two labels; the last batch of an epoch fills two of four parts, all on one rank."""
    words = [*lists_job(tmp_path), *PARTS, *CLIPPED, *cluster, "checkpoint={every_steps: 1, keep: null}"]
    words += ["train.losses={click: {kind: focal, weight: 2}, buy: {kind: mse}}", "train.task_weights=uncertainty"]
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)


@pytest.mark.parametrize(
    "mode",
    [
        ["mode=async", "mode.staleness=1", "train.accumulate=8"],
        ["mode=sync", "train.precision=bfloat16", "train.accumulate=2"],
    ],
    ids=["async", "bfloat16"],
)
def test_losses_and_evaluation_are_those_without_parts(mode: list[str], tmp_path: Path) -> None:
    words = [
        *lists_job(tmp_path),
        *mode,
        "optimizer.dense={kind: sgd, lr: 0.1, schedule: {kind: cosine, over_steps: 9}}",
    ]
    ours, whole = train(words, tmp_path / "parts"), train([*words, "train.accumulate=1"], tmp_path / "whole")
    precision = 1e-2 if "train.precision=bfloat16" in mode else 1e-5
    np.testing.assert_allclose(losses(ours), losses(whole), rtol=precision)
    assert losses(ours) != losses(whole), "sums are rounded elsewhere"
    assert evaluation(ours)["loss"] == pytest.approx(evaluation(whole)["loss"], rel=precision)
