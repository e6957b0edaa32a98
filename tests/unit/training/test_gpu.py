"""The GPU path, if there is a GPU: whole steps against those on the CPU, and the checks of `scripts.measure gpu`."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from persia_cli.bench import baselines
from persia_cli.bench.baselines import DenseBaseline, TorchBaseline
from persia_cli.bench.portions import RingPortions, portion_shape
from persia_cli.config.compose import compose_run
from persia_cli.training.device import CPU, choose_device, prepare_torch
from persia_cli.training.distributed import World
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep
from scripts.measure import targets
from scripts.measure.gpu import Check, run_checks
from scripts.measure.gpu.batches import HISTORY
from scripts.measure.gpu.networks import compiling_checks, network_checks
from scripts.measure.gpu.paths import path_checks
from tests.support.small import WORDS
from tests.unit.model.kinds import KINDS, name
from tests.unit.training.batches import DENSE, GROUPS, OPTIMIZERS, inputs, network, settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
SMALL = {
    name(model): model.model_copy(update={"attend": {"f0": (HISTORY,)}}) if hasattr(model, "attend") else model
    for model in KINDS
}


@pytest.fixture(autouse=True)
def _as_a_rank_has_it() -> Iterator[None]:
    with baselines.settings_kept():
        prepare_torch(1)
        yield


def failed(checks: dict[str, Check]) -> list[str]:
    """Run checks; return the lines of those that fail."""
    judged = targets.judge(list(run_checks(checks, lambda: 1e9)))
    assert judged
    return [each.line() for each in judged if not each.met]


@pytest.mark.parametrize("model", SMALL)
def test_every_network_is_what_it_is_on_the_cpu(model: str) -> None:
    assert failed(network_checks({model: SMALL[model]}, choose_device("cuda", 0))) == []


def test_the_ways_between_host_and_gpu() -> None:
    assert failed(path_checks(SMALL["dlrm"], choose_device("cuda", 0))) == []


@pytest.mark.slow
def test_a_compiled_network_is_the_plain_one() -> None:
    assert failed(compiling_checks({"ffnn": SMALL["ffnn"]}, choose_device("cuda", 0))) == []


@pytest.mark.parametrize("kind", [DenseBaseline, TorchBaseline])
def test_baselines_train_on_it_too(kind: type[DenseBaseline]) -> None:
    words = [*WORDS, "dataset.generator.train_rows=320", "optimizer=adagrad", "train.device=cuda"]
    run = compose_run(words)
    trainer = kind(run)
    assert trainer.gpu is not None
    ring = RingPortions(run, portion_shape(run), 4)
    losses = [trainer.train(ring.next_portion()) for _ in range(200)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 4e-3)])
def test_steps_on_a_gpu_are_those_on_the_cpu(precision: str, near: float) -> None:
    made = []
    for device in (CPU, choose_device("auto", 0)):
        module = network().to(device)
        optimizer = dense_optimizer(OPTIMIZERS[1], module)
        made.append(DenseStep(module, optimizer, GROUPS, World(device=device), DENSE, 7, settings(precision=precision)))
    assert next(made[1].module.parameters()).is_cuda
    for number, size in enumerate((64, 5, 0, 64)):
        batch, groups = inputs(number, size)
        first, second = (step.train(number, batch, groups) for step in made)
        for step in made:
            step.update()
        assert first.logits == pytest.approx(second.logits, rel=near, abs=near)
        for ours, theirs in zip(first.gradients, second.gradients, strict=True):
            greatest = float(np.abs(ours).max(initial=0.0))
            assert ours == pytest.approx(theirs, rel=near, abs=near * greatest)
