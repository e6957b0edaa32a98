"""The work of one of several ranks with every network that ships; the results go to a file."""

from pathlib import Path

import numpy as np
from torch.distributed import FileStore

from persia_cli.config.schema import BCE, DenseSgd
from persia_cli.model.build import build_model
from persia_cli.model.shape import InputShape
from persia_cli.train.device import prepare_torch
from persia_cli.train.distributed import World
from persia_cli.train.inputs import GroupShape, Samples
from persia_cli.train.loss import Objective
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.parts import WHOLE, StepParts
from persia_cli.train.step import DenseStep, StepSettings
from tests.unit.model.kinds import AUXILIARY, KINDS, name, shape_for
from tests.unit.train.batches import group_rows, share

STEPS, SIZE = 3, 16
NORMALISED = {"norm": "batch"}


def with_norm() -> list:
    """The networks with batch normalisation too, of those that can have it."""
    return [model.model_copy(update=NORMALISED) for model in KINDS if getattr(model, "norm", None) == "none"]


def train(world: World, model, parts: StepParts = WHOLE) -> dict[str, np.ndarray]:
    """Train a network on this rank's share of a few batches; weights, gradients of rows and losses by name."""
    shape = shape_for(model)
    own = name(model) + ("-batch" if getattr(model, "norm", None) == "batch" else "")
    module = build_model(model, shape, seed=world.rank)
    groups = [GroupShape(shape.features[0].dim, shape.features)]
    settings = StepSettings(Objective([BCE] * shape.tasks), parts=parts)
    step = DenseStep(
        module, dense_optimizer(DenseSgd(kind="sgd", lr=0.2), module), groups, world, shape.dense, 3, settings
    )
    found: dict[str, np.ndarray] = {}
    for number in range(STEPS):
        rows = [group_rows(group, SIZE, seed=number) for group in groups]
        start, stop = SIZE * world.rank // world.size, SIZE * (world.rank + 1) // world.size
        result = step.train(number, *share(_samples(shape, number), rows, start, stop))
        step.update()
        found |= {f"{own}/gradient/{number}": result.gradients[0], f"{own}/loss/{number}": result.loss_sum}
    return found | {f"{own}/weight/{key}": value.numpy() for key, value in step.module.state_dict().items()}


def _samples(shape: InputShape, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((SIZE, shape.dense)).astype(np.float32)
    labels = rng.integers(0, 2, (SIZE, shape.tasks)).astype(np.float32)
    return Samples(dense, labels, None, [float(SIZE)] * labels.shape[1])


def every_network(world: World) -> dict[str, np.ndarray]:
    """Train all networks, one after the other."""
    found: dict[str, np.ndarray] = {}
    for model in (*KINDS, *with_norm()):
        found |= train(world, model)
    return found


def run(rank: int, size: int, directory: str) -> None:
    """Join the world, train all networks, and write `rank-R.npz`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    np.savez(Path(directory, f"rank-{rank}.npz"), **every_network(world))
    world.close()


def auxiliary(rank: int, size: int, directory: str) -> None:
    """Join the world, train the networks with auxiliary losses, and write `rank-R.npz`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    found = {key: each for model in AUXILIARY for key, each in train(world, model).items()}
    np.savez(Path(directory, f"rank-{rank}.npz"), **found)
    world.close()
