"""Synchronous training in float32 is what plain torch computes, step by step, for every optimizer."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.torch import load_file

from persia_cli.store.checkpoints.manifest import CHECKPOINTS, checkpoint_folder
from persia_cli.store.layout import OptimizerKind
from tests.support.jobs import CRITEO_FFNN, launch, losses, plan
from tests.support.lists import STEPS, hide_labels, lists_job
from tests.support.oracle import Oracle
from tests.support.step_lock import assert_every_step_agrees

EMBEDDED = ["cluster=embedded", "mode=sync", "train.log_every_steps=1", "seed=1"]
TAME_ADAGRAD = ["optimizer.embedding.initial_accumulator_value=0.1", "optimizer.dense.eps=1e-2"]
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


@pytest.mark.parametrize(
    "kind",
    [each if each == "adagrad" else pytest.param(each, marks=pytest.mark.slow) for each in get_args(OptimizerKind)],
)
def test_every_weight_agrees_after_each_step(kind: str, criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, f"optimizer={kind}"]
    if kind == "ftrl":  # its first step would leave weights so small that few gradients remain
        words.append("optimizer.embedding.lr=1")
    job = plan(
        [*words, "train.steps=8", "train.batch_size=64", "checkpoint={every_steps: 1, keep: null}"],
        tmp_path / "run",
    )
    assert_every_step_agrees(job, launch(job), 8)


def test_bfloat16_is_that_of_torch_under_autocast_step_by_step(criteo_rows: Path, tmp_path: Path) -> None:
    """With one id per sample both sides round the same numbers, so that the bounds of float32 hold."""
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, "optimizer=sgd", "train.precision=bfloat16"]
    job = plan(
        [*words, "train.steps=6", "train.batch_size=64", "checkpoint={every_steps: 1, keep: null}"],
        tmp_path / "run",
    )
    assert_every_step_agrees(job, launch(job), 6)


def test_fifty_steps_in_bfloat16_keep_near_to_torch_under_autocast(criteo_rows: Path, tmp_path: Path) -> None:
    """An ulp of float32 makes a weight round to the other bfloat16 now and then, off by 2^-8 of itself, and losses
    drift apart; each is a mean over samples of sums over hundreds of weights, so they stay within one such rounding.
    """
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, "optimizer=adagrad", *TAME_ADAGRAD]
    words += ["train.steps=50", "train.batch_size=128", "checkpoint.at_end=false"]
    job = plan([*words, "train.precision=bfloat16"], tmp_path / "run")
    ours = losses(launch(job))
    oracle = Oracle(job.run, 50)
    theirs = [oracle.step(step) for step in range(50)]
    np.testing.assert_allclose(ours, theirs, rtol=2.0**-8, atol=0)
    exact = Oracle(plan([*words, "train.precision=float32"], tmp_path / "exact").run, 50)
    full = [exact.step(step) for step in range(50)]
    assert np.abs(np.subtract(ours, theirs)).max() < 0.5 * np.abs(np.subtract(theirs, full)).max()


def test_a_network_of_numbers_alone_needs_no_tables(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, "optimizer=sgd"]
    words += ["dataset.sparse=[]", "dataset.generator=null", "dataset.raw=[]"]
    job = plan([*words, "train.steps=8", "train.batch_size=64"], tmp_path / "run")
    result = launch(job)
    oracle = Oracle(job.run, 8)
    np.testing.assert_allclose(losses(result), [oracle.step(step) for step in range(8)], rtol=0, atol=1e-6)


LOSSES = {
    "pairwise and focal": "{click: {kind: pairwise, weight: 0.5}, buy: {kind: focal, weight: 2, alpha: 0.4}}",
    "focal and bce": "{click: {kind: focal, gamma: 1.5, alpha: null, weight: 3}}",
}


@pytest.mark.parametrize("of_labels", LOSSES.values(), ids=LOSSES)
def test_labels_with_separate_losses(of_labels: str, tmp_path: Path) -> None:
    words = [*lists_job(tmp_path), "checkpoint={every_steps: 1, keep: null}", f"train.losses={of_labels}"]
    words += ["optimizer.dense={kind: adamw, lr: 0.001, weight_decay: 0.1, clip_norm: 0.05, eps: 1e-6}"]
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)


ROWS = {
    "sgd": "{kind: sgd, lr: 0.5, l2: 0.05, weight_decay: 0.1}",
    "adagrad": "{kind: adagrad, lr: 0.05, l2: 0.05, weight_decay: 0.2, initial_accumulator_value: 0.1}",
    "rowwise_adagrad": "{kind: rowwise_adagrad, lr: 0.05, l2: 0.05, initial_accumulator_value: 0.1}",
    "adam": "{kind: adam, lr: 0.01, l2: 0.05, weight_decay: 0.3, eps: 1e-3}",
    "rowwise_adam": "{kind: rowwise_adam, lr: 0.01, l2: 0.05, weight_decay: 0.3, eps: 1e-3}",
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_smoothed_labels_and_penalties_of_rows(rows: str, tmp_path: Path) -> None:
    """A row that several features of a batch read is penalised once, and one that none reads does not change."""
    kinds = "{click: {kind: bce, smoothing: 0.2, weight: 2}, buy: {kind: focal, smoothing: 0.3}}"
    words = [
        *lists_job(tmp_path),
        "checkpoint.every_steps=1",
        "checkpoint.keep=null",
        f"train.losses={kinds}",
        "embedding.init_bound=0.3",
    ]
    job = plan([*words, f"optimizer.embedding={rows}", "optimizer.dense.eps=1e-3"], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), STEPS)


def test_pairs_of_each_user(tmp_path: Path) -> None:
    words = [*lists_job(tmp_path), "checkpoint={every_steps: 1, keep: null}", "dataset.group_by=user"]
    words += ["train.losses={click: {kind: bpr, weight: 3}, buy: {kind: mse}}"]
    job = plan([*words, "optimizer.dense={kind: adam, lr: 0.001, eps: 1e-3}"], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), STEPS)


def test_labels_weighed_by_their_uncertainty(tmp_path: Path) -> None:
    words = [*lists_job(tmp_path), "checkpoint={every_steps: 1, keep: null}", "train.task_weights=uncertainty"]
    words += ["train.losses={click: {kind: focal, weight: 2}, buy: {kind: mse}}"]
    job = plan([*words, "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-6}"], tmp_path / "run")
    result = launch(job)
    assert_every_step_agrees(job, result, STEPS)
    saved = load_file(checkpoint_folder(job.run_dir / CHECKPOINTS, STEPS) / "dense" / "dense.safetensors")
    assert (saved["task_uncertainty.log_variances"].abs() > 0.02).all()


@pytest.mark.parametrize(
    "kinds",
    [
        "{click: {kind: bce, pos_weight: 3}}",
        pytest.param("{buy: {kind: pairwise}}", marks=pytest.mark.slow),
        pytest.param("{click: {kind: focal}, buy: {kind: mse}}", marks=pytest.mark.slow),
    ],
    ids=["plain", "pairs", "numbers"],
)
def test_labels_that_are_not_known_do_not_count(kinds: str, tmp_path: Path) -> None:
    words = [*lists_job(tmp_path), "checkpoint={every_steps: 1, keep: null}", f"train.losses={kinds}"]
    hide_labels(tmp_path, buy=0.6)
    job = plan([*words, "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-3}"], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), STEPS)


@pytest.mark.parametrize("stack", ["null", "{rounds: 3, size: 25}"], ids=["rows", "hash-stack"])
def test_lists_weights_tasks_and_a_short_last_batch(stack: str, tmp_path: Path) -> None:
    """Pooled by mean and square root, and as a sequence, the items are of one table, which may be a hash stack."""
    words = [
        *lists_job(tmp_path),
        "checkpoint.every_steps=1",
        "checkpoint.keep=null",
        f"embedding.tables.item={{hash_stack: {stack}}}",
    ]
    job = plan(words, tmp_path / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)
