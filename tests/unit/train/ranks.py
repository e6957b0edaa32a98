"""The work of one of several ranks in a separate process; the results go to a file."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import numpy as np
import torch
from torch.distributed import FileStore
from torch.nn.parallel import DistributedDataParallel

from persia_cli.config.schema import DenseSgd, Ffnn
from persia_cli.errors import PersiaError
from persia_cli.model.build import build_model
from persia_cli.train.device import prepare_torch
from persia_cli.train.distributed import World
from persia_cli.train.inputs import Samples
from persia_cli.train.optimizer import dense_optimizer
from persia_cli.train.parts import WHOLE, StepParts
from persia_cli.train.step import DenseStep
from tests.unit.train.batches import DENSE, GROUPS, SHAPE, TASKS, chosen, group_rows, network, samples, settings, share

STEPS, SIZE = 4, 12
PARTS = StepParts(4, 3)
"""Of two ranks with half of a step each, the last two parts are empty."""


def train(
    world: World,
    first: int = 0,
    last: int = STEPS,
    module: torch.nn.Module | None = None,
    parts: StepParts = WHOLE,
    order: Sequence[int] | None = None,
) -> dict[str, np.ndarray]:
    """Train on this rank's share; the last step has samples for rank 0 alone. Weights, gradients and losses by name.

    With `order` the samples of each batch come in another one.
    """
    module = network(seed=world.rank) if module is None else module
    optimizer = dense_optimizer(DenseSgd(kind="sgd", lr=0.5), module)
    step = DenseStep(module, optimizer, GROUPS, world, DENSE, 3, settings(parts=parts))
    found: dict[str, np.ndarray] = {}
    for number in range(first, last):
        start, stop = SIZE * world.rank // world.size, SIZE * (world.rank + 1) // world.size
        if number == STEPS - 1:
            start, stop = (0, SIZE) if world.rank == 0 else (SIZE, SIZE)
        groups = [group_rows(shape, SIZE, seed=number) for shape in GROUPS]
        whole = samples(SIZE, seed=number)
        batch = share(whole, groups, start, stop) if order is None else chosen(whole, groups, order)
        result = step.train(number, *batch)
        step.update()
        found |= {f"gradient/{number}/{group}": value for group, value in enumerate(result.gradients)}
        found[f"loss/{number}"] = result.loss_sum
    return found | {f"weight/{name}": value.numpy() for name, value in step.module.state_dict().items()}


def run_to_the_end(target: Callable[[int, int, str], None], rank: int, size: int, directory: str) -> None:
    """Call a function of this module, and end the process as the product does: torch may abort it otherwise."""
    target(rank, size, directory)
    os._exit(0)


def run(rank: int, size: int, directory: str) -> None:
    """Join the world, train, and write `rank-R.npz`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    np.savez(Path(directory, f"rank-{rank}.npz"), **train(world))
    world.close()


def normalise(rank: int, size: int, directory: str) -> None:
    """Join the world, train a network whose layers share statistics, and write `rank-R.npz`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    np.savez(Path(directory, f"rank-{rank}.npz"), **train(world, module=normalised(seed=rank)))
    world.close()


def accumulate(rank: int, size: int, directory: str) -> None:
    """Join the world, train in parts, count the sums over ranks of dense gradients, and write `rank-R.npz`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    sums: list[int] = []
    register = DistributedDataParallel.register_comm_hook

    def counting(module, state, hook):
        @wraps(hook)
        def counted(state, bucket):
            sums.append(bucket.index())
            return hook(state, bucket)

        register(module, state, counted)

    DistributedDataParallel.register_comm_hook = counting
    found = train(world, parts=PARTS)
    normal = train(world, last=STEPS - 1, module=normalised(seed=rank), parts=PARTS)
    found |= {f"normal/{name}": value for name, value in normal.items()}
    np.savez(Path(directory, f"rank-{rank}.npz"), sums=sums, **found)
    world.close()


def normalised(seed: int = 0) -> torch.nn.Module:
    """A network of two layers with batch normalisation, one of them inside of its activation too."""
    model = Ffnn(kind="ffnn", dim=4, hidden=(8, 5), norm="batch", activation=("prelu", "dice"))
    return build_model(model, SHAPE, seed)


def resume(rank: int, size: int, directory: str) -> None:
    """Train, then stop half-way and go on with a new DenseStep, and write the weights of both ways."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    whole = train(world)
    module = network(seed=world.rank)
    train(world, last=STEPS // 2, module=module)
    resumed = train(world, first=STEPS // 2, module=module)
    weights = {name: value for name, value in whole.items() if name.startswith("weight/")}
    np.savez(Path(directory, f"rank-{rank}.npz"), **weights, **{f"resumed/{name}": resumed[name] for name in weights})
    world.close()


def leave(rank: int, size: int, directory: str) -> None:
    """Rank 1 ends at once; the other writes the error that it gets to `error.txt`."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    if rank == 1:
        os._exit(0)
    try:
        train(world)
    except PersiaError as error:
        Path(directory, "error.txt").write_text(f"{type(error).__name__}: {error}")
    world.close()


class Idle(torch.nn.Module):
    """Has a parameter that its logits do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(DENSE, TASKS)
        self.spare = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch):
        return self.layer(batch.dense)


class Scaled(torch.nn.Module):
    """Reads dense features, and rows in a way that overflows float16 in the gradient of rows alone, if `sensitive`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(DENSE, TASKS)
        self.sensitive = False

    def forward(self, batch):
        rows = (batch.groups[0].flatten(1) * 1e-3).half() * (30000 if self.sensitive else 1)
        return self.layer(batch.dense).float() + rows.float().mean(1, keepdim=True) * 0.5


def overflow(rank: int, size: int, directory: str) -> None:
    """Three steps in float16; rank 1's dense gradient overflows in the first, its gradient of rows in the third."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    module = Scaled()
    torch.nn.init.constant_(module.layer.weight, 1e-3)
    optimizer = dense_optimizer(DenseSgd(kind="sgd", lr=0.01), module)
    step = DenseStep(module, optimizer, GROUPS, world, DENSE, 3, settings(precision="float16"))
    scales, skipped = [], []
    for number in range(3):
        whole = samples(SIZE, seed=number)
        groups = [group_rows(shape, SIZE, seed=number) for shape in GROUPS]
        start, stop = SIZE * rank // size, SIZE * (rank + 1) // size
        mine, rows = share(whole, groups, start, stop)
        if rank == 1 and number == 0:
            mine = Samples(np.full_like(mine.dense, 2000.0), mine.labels, mine.weights, mine.weight_totals)
        module.sensitive = rank == 1 and number == 2
        step.train(number, mine, rows)
        step.update()
        scales.append(step.loss_scale.scale)
        skipped.append(step.loss_scale.skipped)
    weight = module.layer.weight.detach().numpy()
    np.savez(Path(directory, f"rank-{rank}.npz"), scales=scales, skipped=skipped, weight=weight)
    world.close()
