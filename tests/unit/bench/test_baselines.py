"""Baselines get the same data as the job, and really train on it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from persia_cli.bench import baselines
from persia_cli.bench.baselines import DenseBaseline, TorchBaseline, choose_baselines
from persia_cli.bench.portions import Feeder, Portion, RingPortions, portion_shape, table_sizes
from persia_cli.config.compose import compose_run
from persia_cli.config.expected import kinds
from persia_cli.config.record import write_run
from persia_cli.config.schema import DenseOptimizer, Optimizer, Run
from persia_cli.data.read.batch import assemble
from persia_cli.data.read.source import open_source
from persia_cli.errors import RoleError, UserError
from persia_cli.training.graphs.step import SLOTS
from scripts.measure.gpu.host_queue import HostQueue
from scripts.measure.gpu.tables import GraphedTables
from tests.support.small import WORDS


@pytest.fixture(autouse=True)
def _settings_kept() -> Iterator[None]:
    with baselines.settings_kept():
        yield


def small(rows: int, *words: str) -> Run:
    return compose_run([*WORDS, f"dataset.generator.train_rows={rows}", *words])


def test_a_portion_holds_the_rows_of_one_concatenated_table() -> None:
    shape = portion_shape(small(100))
    assert shape.sizes == (20, 300)
    ids = [np.array([3, 19], np.uint64), np.array([0, 299], np.uint64)]
    dense, labels = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([[0.0], [1.0]], np.float32)
    portion = shape.portion(assemble(dense, labels, None, ids, [None, None]))
    assert portion.rows.tolist() == [[3, 20], [19, 319]]
    assert portion.rows.flags.c_contiguous


def test_only_tables_must_have_a_known_size() -> None:
    """The dense network alone reads no rows."""
    run = compose_run(["dataset=adult_income", "train.batch_size=32"])
    with pytest.raises(UserError, match="size of every table"):
        table_sizes(run)
    assert np.isfinite(losses(DenseBaseline(run), run, 2)).all()


def test_a_feeder_reads_the_same_in_a_separate_process(tmp_path: Path) -> None:
    run = small(100)
    write_run(run, tmp_path / "config.yaml")
    shape = portion_shape(run)
    source = open_source(run.dataset, "train", run.seed)
    feeder = Feeder(tmp_path / "config.yaml", shape)
    try:
        # 100 rows have three whole batches; the short fourth is left out.
        for step in range(8):
            start = step % 3 * 32
            expected, portion = shape.portion(source.read(0, start, start + 32)), feeder.next_portion()
            assert np.array_equal(portion.rows, expected.rows)
            assert np.array_equal(portion.dense, expected.dense)
            assert np.array_equal(portion.labels, expected.labels)
            assert portion.weights.size == 0
    finally:
        feeder.close()


def test_a_feeder_that_dies_is_reported(tmp_path: Path) -> None:
    feeder = Feeder(tmp_path / "nowhere.yaml", portion_shape(small(100)))
    try:
        with pytest.raises(RoleError, match="the process that reads batches"):
            feeder.next_portion()
    finally:
        feeder.close()


def losses(trainer: DenseBaseline, run: Run, steps: int) -> list[float]:
    ring = RingPortions(run, portion_shape(run), 8)
    trainer.prepare()
    return [trainer.train(ring.next_portion()) for _ in range(steps)]


def test_torch_memorizes_its_batches() -> None:
    run = small(3200, "optimizer=adagrad", "optimizer.embedding.lr=0.1", "optimizer.dense.lr=0.05")
    told = losses(TorchBaseline(run), run, 400)
    assert np.mean(told[-8:]) < 0.8 * np.mean(told[:8])


def test_torch_moves_only_the_rows_of_the_batch() -> None:
    run = small(3200, "optimizer=adagrad", "optimizer.embedding.lr=0.1")
    trainer = TorchBaseline(run)
    before = trainer._bag.weight.detach().clone()
    rows = np.array([[4, 21], [4, 22]], np.int64)
    trainer.train(Portion(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32), np.empty(0, np.float32), rows))
    moved = (before != trainer._bag.weight.detach()).any(1).nonzero()
    assert moved.view(-1).tolist() == [4, 21, 22]


@pytest.mark.parametrize("optimizer", sorted({*kinds(Optimizer)} - {*kinds(DenseOptimizer)}))
def test_optimizers_that_torch_has_not_are_refused(optimizer: str) -> None:
    with pytest.raises(UserError, match="torch has no sparse optimizer"):
        TorchBaseline(small(3200, f"optimizer={optimizer}"))


@pytest.mark.parametrize("dense", ["adagrad", "adam"])
def test_tables_in_a_graph_train_as_a_sparse_embedding_bag(dense: str) -> None:
    words = [f"optimizer.dense={{kind: {dense}, lr: 0.02}}", "optimizer.embedding.lr=0.1"]
    run = small(320, "optimizer=adagrad", "optimizer.embedding.initial_accumulator_value=0.1", *words)
    shape = portion_shape(run)
    plain, ours = TorchBaseline(run), GraphedTables(run, HostQueue())
    with torch.no_grad():
        plain._bag.weight.copy_(ours._weights[:-1])
    portions = RingPortions(run, shape, 4)
    batches = [portions.next_portion() for _ in range(8)]
    expected = [plain.train(each) for each in batches]
    losses = [ours.train(each) for each in batches]
    assert losses[SLOTS + 1 :] == pytest.approx(expected[1 : len(expected) - SLOTS], rel=1e-5)
    assert ours.finish() == pytest.approx(expected[-1], rel=1e-5)
    torch.testing.assert_close(ours._weights[:-1], plain._bag.weight.detach(), rtol=1e-4, atol=1e-6)


def test_a_baseline_that_is_unknown() -> None:
    with pytest.raises(UserError, match="there is no baseline 'jax'; there are torch and dense"):
        choose_baselines(small(3200), ["torch", "jax"])
