"""Synchronous training is what plain torch computes, step by step: every optimizer, loss and kind of feature."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from persia_cli.store.layout import OptimizerKind
from tests.support.jobs import CRITEO_FFNN, launch, losses, plan, train
from tests.support.lists import STEPS, hide_labels, lists_job
from tests.support.oracle import Oracle
from tests.support.step_lock import assert_every_step_agrees

EMBEDDED = ["cluster=embedded", "mode=sync", "train.log_every_steps=1", "seed=1"]
TWO_RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2", "cluster.embedding_workers=2"]
EVERY_STEP = "checkpoint={every_steps: 1, keep: null}"
TABLES = [
    "embedding.tables.user={optimizer: {kind: rowwise_adagrad, lr: 0.05, l2: 0.05, initial_accumulator_value: 0.1}}",
    "embedding.tables.tags={dim: 6, optimizer: {kind: sgd, lr: 0.5, l2: 0.01}}",
    "embedding.tables.item={optimizer: {kind: adagrad, lr: 0.05, weight_decay: 0.2, initial_accumulator_value: 0.1}}",
    "embedding.tables.place={dim: 4, optimizer: {kind: ftrl, lr: 0.1, l1: 1e-4, l2: 1e-3, "
    "initial_accumulator_value: 0.1}}",
    "embedding.tables.words={optimizer: {kind: adam, lr: 0.01, l2: 0.05, weight_decay: 0.1}, init_bound: 0.2}",
]
"""Between them the tables of one job have the row optimizers, most with their own penalties."""
DENSE = {
    "sgd": "optimizer.dense={kind: sgd, lr: 0.1}",
    "adagrad": "optimizer.dense={kind: adagrad, lr: 0.05, eps: 1e-2}",
    "adam": "optimizer.dense={kind: adam, lr: 0.001}",
    "adamw": "optimizer.dense={kind: adamw, lr: 0.001, weight_decay: 0.1}",
}
RANKS = {
    1: ["cluster=embedded"],
    2: TWO_RANKS,
    4: ["cluster=local", "cluster.nn_workers=4", "cluster.embedding_servers=2"],
}


def require_every_step(words: list[str], folder: Path, *own: str) -> None:
    """Train on lists and require that rows and dense weights are plain torch's after each step."""
    job = plan([*words, EVERY_STEP, *own], folder / "run")
    result = launch(job)
    assert len(losses(result)) == STEPS
    assert_every_step_agrees(job, result, STEPS)


@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("ranks", [1, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4))])
def test_every_weight_agrees_after_each_step(ranks: int, dense: str, tmp_path: Path) -> None:
    """The last step of an epoch is short, so that of four ranks two have no sample in it."""
    require_every_step(lists_job(tmp_path), tmp_path, *TABLES, DENSE[dense], *RANKS[ranks])


@pytest.mark.parametrize("stack", ["null", "{rounds: 3, size: 25}"], ids=["rows", "hash-stack"])
def test_lists_weights_tasks_and_a_short_last_batch(stack: str, tmp_path: Path) -> None:
    """Pooled by mean and square root, and as a sequence, the items are of one table, which may be a hash stack."""
    require_every_step(lists_job(tmp_path), tmp_path, f"embedding.tables.item={{hash_stack: {stack}}}")


LOSSES = {
    "pairwise and focal": [
        "train.losses={click: {kind: pairwise, weight: 0.5}, buy: {kind: focal, weight: 2, alpha: 0.4}}",
        "optimizer.dense={kind: adamw, lr: 0.001, weight_decay: 0.1, clip_norm: 0.05, eps: 1e-6}",
    ],
    "smoothed labels and penalties": [
        "train.losses={click: {kind: bce, smoothing: 0.2, weight: 2}, buy: {kind: focal, smoothing: 0.3}}",
        "optimizer.embedding={kind: rowwise_adam, lr: 0.01, l2: 0.05, weight_decay: 0.3, eps: 1e-3}",
        *("embedding.init_bound=0.3", "optimizer.dense.eps=1e-3"),
    ],
    "pairs of each user": [
        "train.losses={click: {kind: bpr, weight: 3}, buy: {kind: mse}}",
        *("dataset.group_by=user", "optimizer.dense={kind: adam, lr: 0.001, eps: 1e-3}"),
    ],
    "weighed by uncertainty": [
        "train.losses={click: {kind: focal, weight: 2}, buy: {kind: mse}}",
        *("train.task_weights=uncertainty", "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-6}"),
    ],
}


@pytest.mark.parametrize("own", LOSSES.values(), ids=LOSSES)
def test_losses_of_several_labels(own: list[str], tmp_path: Path) -> None:
    require_every_step(lists_job(tmp_path), tmp_path, *own)


@pytest.mark.parametrize(
    ("kinds", "ranks"),
    [
        ("{click: {kind: bce, pos_weight: 3}}", 1),
        pytest.param("{buy: {kind: pairwise}}", 1, marks=pytest.mark.slow),
        pytest.param("{click: {kind: focal}, buy: {kind: huber}}", 2, marks=pytest.mark.slow),
    ],
    ids=["plain", "pairs", "ranks"],
)
def test_labels_that_are_not_known_do_not_count(kinds: str, ranks: int, tmp_path: Path) -> None:
    words = lists_job(tmp_path)
    hide_labels(tmp_path, buy=0.6)
    dense = "optimizer.dense={kind: adam, lr: 0.01, eps: 1e-3}"
    require_every_step(words, tmp_path, f"train.losses={kinds}", dense, *RANKS[ranks])


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("ffnn", ["optimizer=adam", "optimizer.embedding.eps=1e-3", "optimizer.dense.eps=1e-3"]),
        (
            "dlrm",
            ["optimizer=adagrad", "optimizer.embedding.initial_accumulator_value=0.1", "optimizer.dense.eps=1e-2"],
        ),
    ],
    ids=["ffnn-adam", "dlrm-adagrad"],
)
def test_fifty_steps_have_the_losses_of_plain_torch(
    model: str, optimizer: list[str], criteo_rows: Path, tmp_path: Path
) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", f"model={model}", *EMBEDDED, *optimizer]
    job = plan([*words, "train.steps=50", "train.batch_size=128", "checkpoint.at_end=false"], tmp_path / "run")
    ours = losses(launch(job))
    oracle = Oracle(job.run, 50)
    np.testing.assert_allclose(ours, [oracle.step(step) for step in range(50)], rtol=0, atol=1e-5)
    assert ours[-1] < ours[0] - 0.02


KINDS = [
    "{kind: sgd, lr: 0.1}",
    "{kind: adam, lr: 0.001, eps: 1e-3}",
    "{kind: adagrad, lr: 0.05, initial_accumulator_value: 0.1}",
]


@pytest.mark.slow
def test_fifty_steps_of_two_ranks_have_the_losses_of_one_and_of_torch(criteo_rows: Path, tmp_path: Path) -> None:
    tables = ", ".join(f"C{number}: {{optimizer: {KINDS[number % 3]}}}" for number in range(1, 27))
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED[1:], f"embedding.tables={{{tables}}}"]
    words += ["optimizer.dense.eps=1e-3", "checkpoint.at_end=false", "train.steps=50", "train.batch_size=128"]
    job = plan([*words, *TWO_RANKS], tmp_path / "two")
    two = losses(launch(job))
    oracle = Oracle(job.run, 50)
    np.testing.assert_allclose(two, [oracle.step(step) for step in range(50)], rtol=0, atol=1e-5)
    np.testing.assert_allclose(two, losses(train([*words, "cluster=embedded"], tmp_path / "one")), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [each if each == "adagrad" else pytest.param(each, marks=pytest.mark.slow) for each in get_args(OptimizerKind)],
)
def test_every_row_optimizer_agrees_after_each_step(kind: str, criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, f"optimizer={kind}"]
    if kind == "ftrl":  # its first step would leave weights so small that few gradients remain
        words.append("optimizer.embedding.lr=1")
    job = plan([*words, "train.steps=8", "train.batch_size=64", EVERY_STEP], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), 8)


def test_bfloat16_is_that_of_torch_under_autocast_step_by_step(criteo_rows: Path, tmp_path: Path) -> None:
    """With one id per sample both sides round the same numbers, so that the bounds of float32 hold."""
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, "optimizer=sgd", "train.precision=bfloat16"]
    job = plan([*words, "train.steps=6", "train.batch_size=64", EVERY_STEP], tmp_path / "run")
    assert_every_step_agrees(job, launch(job), 6)


def test_a_network_of_numbers_alone_needs_no_tables(criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", *EMBEDDED, "optimizer=sgd"]
    words += ["dataset.sparse=[]", "dataset.generator=null", "dataset.raw=[]"]
    job = plan([*words, "train.steps=8", "train.batch_size=64"], tmp_path / "run")
    oracle = Oracle(job.run, 8)
    np.testing.assert_allclose(losses(launch(job)), [oracle.step(step) for step in range(8)], rtol=0, atol=1e-6)
