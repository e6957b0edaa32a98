"""The work of several ranks in separate processes, and its comparison with that of one."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import FileStore
from torch.nn.parallel import DistributedDataParallel

from persia_cli.config.schema import BCE, DenseSgd, Ffnn
from persia_cli.errors import PersiaError
from persia_cli.model.build import build_model
from persia_cli.model.shape import InputShape
from persia_cli.training.device import prepare_torch
from persia_cli.training.distributed import World
from persia_cli.training.inputs import WHOLE, GroupShape, StepParts
from persia_cli.training.loss import Objective
from persia_cli.training.optimizer import dense_optimizer
from persia_cli.training.step import DenseStep
from tests.unit.model.kinds import AUXILIARY, KINDS, name, shape_for
from tests.unit.training.batches import (
    GROUPS,
    SHAPE,
    chosen,
    group_rows,
    network,
    samples,
    settings,
    share,
)

Results = dict[str, Any]
"""Arrays by name."""

STEPS, SIZE = 4, 12
PARTS = StepParts(4, 3)
"""Of two ranks with half of a step each, the last two parts are empty."""


def train(
    world: World,
    last: int = STEPS,
    module: torch.nn.Module | None = None,
    parts: StepParts = WHOLE,
    order: Sequence[int] | None = None,
    shape: InputShape = SHAPE,
    groups: Sequence[GroupShape] = GROUPS,
) -> Results:
    """Train on this rank's share; the last step has samples for rank 0 alone. Weights, gradients and losses by name.

    With `order` the samples of each batch come in another one.
    """
    module = network(seed=world.rank) if module is None else module
    optimizer = dense_optimizer(DenseSgd(kind="sgd", lr=0.5), module)
    objective = Objective([BCE] * shape.tasks)
    step = DenseStep(module, optimizer, groups, world, shape.dense, 3, settings(parts=parts, objective=objective))
    found: Results = {}
    for number in range(last):
        start, stop = SIZE * world.rank // world.size, SIZE * (world.rank + 1) // world.size
        if number == STEPS - 1:
            start, stop = (0, SIZE) if world.rank == 0 else (SIZE, SIZE)
        rows = [group_rows(group, SIZE, seed=number) for group in groups]
        whole = samples(SIZE, number, dense=shape.dense, tasks=shape.tasks)
        batch = share(whole, rows, start, stop) if order is None else chosen(whole, rows, order)
        result = step.train(number, *batch)
        step.update()
        found |= {f"gradient/{number}/{group}": value for group, value in enumerate(result.gradients)}
        found[f"loss/{number}"] = result.loss_sum
    return found | {f"weight/{name}": value.numpy() for name, value in step.module.state_dict().items()}


def on_ranks(target: Callable[[World], Results], size: int, directory: Path) -> list[Results]:
    """The results of `target` on each rank, in a separate process."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=run, args=(target, rank, size, str(directory))) for rank in range(size)]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(120)
        assert [process.exitcode for process in started] == [0] * size
    finally:
        for process in started:
            process.kill()
            process.join()
    return [dict(np.load(path)) for path in sorted(directory.glob("rank-*.npz"))]


def run(target: Callable[[World], Results], rank: int, size: int, directory: str) -> None:
    """Join the world, write `rank-R.npz`, and end as the product does: torch may abort the process otherwise."""
    prepare_torch(1)
    world = World(rank, size, FileStore(f"{directory}/store", size), timeout_s=60.0)
    np.savez(Path(directory, f"rank-{rank}.npz"), **target(world))
    world.close()
    os._exit(0)


def assert_one_model(found: list[Results], one: Results) -> None:
    """Weights are equal on all ranks and those of one; gradients and losses add up to its own."""
    for key, expected in one.items():
        if "/weight/" in f"/{key}":
            assert all(np.array_equal(found[0][key], other[key]) for other in found[1:]), key
            assert found[0][key] == pytest.approx(expected, rel=1e-4, abs=1e-5), key
        else:
            assert sum(each[key] for each in found) == pytest.approx(expected, rel=1e-4, abs=1e-5), key


def networks(world: World, models: Iterable[Any], parts: StepParts = WHOLE) -> Results:
    """Train networks, one after the other."""
    found: Results = {}
    for model in models:
        shape = shape_for(model)
        groups = [GroupShape(shape.features[0].dim, shape.features)]
        module = build_model(model, shape, seed=world.rank)
        own = name(model) + ("-batch" if getattr(model, "norm", None) == "batch" else "")
        results = train(world, STEPS - 1, module, parts, shape=shape, groups=groups)
        found |= {f"{own}/{key}": value for key, value in results.items()}
    return found


def every_network(world: World) -> Results:
    """Train all networks, those that can have batch normalisation also with it."""
    plain = [model for model in KINDS if getattr(model, "norm", None) == "none"]
    return networks(world, [*KINDS, *(model.model_copy(update={"norm": "batch"}) for model in plain)])


def auxiliary(world: World) -> Results:
    """Train the networks with auxiliary losses."""
    return networks(world, AUXILIARY)


def normalised(seed: int = 0) -> torch.nn.Module:
    """A network of two layers with batch normalisation, one of them inside of its activation too."""
    model = Ffnn(kind="ffnn", dim=4, hidden=(8, 5), norm="batch", activation=("prelu", "dice"))
    return build_model(model, SHAPE, seed)


def normalise(world: World) -> Results:
    """Train a network whose layers share statistics."""
    return train(world, module=normalised(seed=world.rank))


def accumulate(world: World) -> Results:
    """Train in parts, and count the sums over ranks of dense gradients."""
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
    normal = train(world, last=STEPS - 1, module=normalised(seed=world.rank), parts=PARTS)
    return found | {f"normal/{name}": value for name, value in normal.items()} | {"sums": sums}


def leave(world: World) -> Results:
    """Rank 1 ends at once; the other gets an error."""
    if world.rank == 1:
        os._exit(0)
    with pytest.raises(PersiaError) as error:
        train(world)
    return {"error": f"{error.type.__name__}: {error.value}"}
