"""Baselines really train: the same network, loss and optimizers, on the rows they are given."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from persia_cli.bench.baselines import trainers
from persia_cli.bench.baselines.trainers import DenseBaseline, TorchBaseline
from persia_cli.bench.portions import Portion, RingPortions, portion_shape
from persia_cli.config.compose import compose_run
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from tests.support.small import WORDS


@pytest.fixture(autouse=True)
def _settings_kept() -> Iterator[None]:
    with trainers.settings_kept():
        yield


def small(*words: str) -> Run:
    return compose_run([*WORDS, "dataset.generator.train_rows=3200", *words])


def losses(trainer: DenseBaseline, run: Run, steps: int) -> list[float]:
    ring = RingPortions(run, portion_shape(run), 8)
    trainer.prepare()
    return [trainer.train(ring.take()) for _ in range(steps)]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_torch_memorizes_its_batches(optimizer: str) -> None:
    run = small(f"optimizer={optimizer}", "optimizer.embedding.lr=0.1", "optimizer.dense.lr=0.05")
    told = losses(TorchBaseline(run, portion_shape(run).sizes), run, 400)
    assert np.mean(told[-8:]) < 0.8 * np.mean(told[:8])


def test_torch_moves_only_the_rows_of_the_batch() -> None:
    run = small("optimizer=adagrad")
    trainer = TorchBaseline(run, (20, 300))
    before = [trainer.row(number).copy() for number in range(320)]
    rows = np.array([[4, 21], [4, 22]], np.int64)
    trainer.train(Portion(np.ones((2, 2), np.float32), np.ones((2, 1), np.float32), np.empty(0, np.float32), rows))
    moved = [number for number in range(320) if not np.array_equal(before[number], trainer.row(number))]
    assert moved == [4, 21, 22]


def test_dense_trains_the_network_alone() -> None:
    run = small("optimizer=adagrad")
    told = losses(DenseBaseline(run), run, 200)
    assert np.isfinite(told).all()
    assert np.mean(told[-8:]) < np.mean(told[:8])


@pytest.mark.parametrize("kind", [DenseBaseline, TorchBaseline])
def test_bfloat16_is_an_autocast(kind: type[DenseBaseline]) -> None:
    runs = [small("optimizer=adagrad", f"train.precision={precision}") for precision in ("float32", "bfloat16")]
    sizes = [portion_shape(runs[0]).sizes] if kind is TorchBaseline else []
    full, half = (losses(kind(run, *sizes), run, 5) for run in runs)
    assert full != half
    assert full == pytest.approx(half, rel=0.02)


def test_threads_are_the_runs_own() -> None:
    run = small("train.threads=2")
    DenseBaseline(run).prepare()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("optimizer", ["ftrl", "rowwise_adagrad", "rowwise_adam"])
def test_optimizers_that_torch_has_not_are_refused(optimizer: str) -> None:
    with pytest.raises(UserError, match="torch has no sparse optimizer"):
        TorchBaseline(small(f"optimizer={optimizer}"), (20, 300))


def test_steps_in_parts_are_refused() -> None:
    with pytest.raises(UserError, match=r"at once; leave out train\.accumulate"):
        DenseBaseline(small("optimizer=adagrad", "train.accumulate=2"))


def test_a_table_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "available_bytes", lambda: 10_000)
    with pytest.raises(UserError, match=r"plain torch needs 0\.0 GiB for 320 rows"):
        TorchBaseline(small(), (20, 300))
