"""Whole steps on a GPU, where there is one, against those on the CPU."""

import numpy as np
import pytest
import torch

from persia_cli.train.device import CPU, choose_device
from persia_cli.train.distributed import World
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.step import DenseStep
from tests.unit.train import test_dense_step as steps
from tests.unit.train.batches import DENSE, GROUPS, network, samples, settings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 4e-3)])
def test_steps_on_a_gpu_are_those_on_the_cpu(precision: str, near: float) -> None:
    made = []
    for device in (CPU, choose_device("auto", 0)):
        module = network().to(device)
        optimizer = dense_optimizer(steps.OPTIMIZERS[1], module)
        made.append(DenseStep(module, optimizer, GROUPS, World(device=device), DENSE, 7, settings(precision=precision)))
    assert next(made[1].module.parameters()).is_cuda
    for number, size in enumerate((64, 5, 0, 64)):
        batch, groups = samples(size, seed=number), steps.rows_of(number, size)
        first, second = (step.train(number, batch, groups) for step in made)
        for step in made:
            step.update()
        assert first.logits == pytest.approx(second.logits, rel=near, abs=near)
        for ours, theirs in zip(first.gradients, second.gradients, strict=True):
            greatest = float(np.abs(ours).max(initial=0.0))
            assert ours == pytest.approx(theirs, rel=near, abs=near * greatest)
