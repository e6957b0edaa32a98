"""Checks of every network on the GPU: against the CPU, by CUDA graphs against plain steps, and compiled."""

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch

from persia_cli.bench.result import Result
from persia_cli.config.schema import Model
from persia_cli.store.wire_rows import decode_rows
from persia_cli.training.compiling import require_compiler
from persia_cli.training.device import Precision
from persia_cli.training.distributed import World
from persia_cli.training.graphs.device_queue import CudaQueue
from persia_cli.training.graphs.step import GraphedStep
from persia_cli.training.inputs import GroupShape
from scripts.measure.gpu import Check, checked, compared, deviation
from scripts.measure.gpu.batches import Floats, Trainer, Trajectory
from scripts.measure.gpu.host_queue import HostQueue
from scripts.measure.timing import Turn, alternate

STEPS, SIZE = 20, 256
FLOAT32 = 1e-4
"""Greatest allowed deviation from the CPU in float32, and of compiled networks."""
TIMES, FLOOR = 3.0, 1e-5
"""Multiple of bfloat16's deviation from float32 on the CPU that the device may deviate; devices round differently."""
GRAPHS: dict[Precision, float] = {"float32": 1e-5, "bfloat16": 2e-2}
"""Greatest deviation of logits and rows of steps by graphs, after all steps."""
RATE = 0.05
LAST, TIMED = 100, 4096
"""Samples of a short batch after the others, and of those that are timed."""
PARTS = ("forward", "backward", "logits", "rows", "weights")
"""The compared parts: first logits, first gradients of rows, all logits, and rows and weights at the end."""


def network_checks(models: Mapping[str, Model], device: torch.device, steps: int = STEPS) -> dict[str, Check]:
    """Return checks of each network in each precision against float32 on the CPU."""
    world = World(device=device)
    return {f"network {name}": partial(_network, name, model, world, steps) for name, model in models.items()}


def _network(name: str, model: Model, world: World, steps: int) -> Iterator[Result]:
    allowed = dict.fromkeys(PARTS, FLOAT32)
    exact, found = _against_cpu(model, world, steps)
    note = ""
    if not all(found[part] <= FLOAT32 for part in PARTS):
        # Rounding may carry an input of a ReLU over 0, and a gradient jumps: then steps are checked without kinks.
        smooth = _against_cpu(model, world, steps, smooth=True)[1]
        found |= {part: smooth[part] for part in PARTS[2:]}
        note = "steps with SiLU in the place of ReLU"
    yield compared(f"network {name}, float32, {steps} steps", found, allowed, note)
    rounded = _deviations(Trainer(model, World(), "bfloat16", by_kernels=True).trajectory(steps, SIZE), exact)
    half = _deviations(Trainer(model, world, "bfloat16").trajectory(steps, SIZE), exact)
    allowed = {part: TIMES * noise + FLOOR for part, noise in rounded.items()}
    yield compared(f"network {name}, bfloat16, {steps} steps", half, allowed)


def _against_cpu(model: Model, world: World, steps: int, smooth: bool = False) -> tuple[Trajectory, dict[str, float]]:
    """Return the trajectory in float32 on the CPU, and the deviations of the device from it."""
    exact = Trainer(model, World(), by_kernels=True, smooth=smooth).trajectory(steps, SIZE)
    return exact, _deviations(Trainer(model, world, smooth=smooth).trajectory(steps, SIZE), exact)


def _deviations(ours: Trajectory, exact: Trajectory) -> dict[str, float]:
    return {
        "forward": deviation(ours.logits[0], exact.logits[0]),
        # A gradient that jumps at a kink does so in a few batches.
        "backward": median(deviation(mine, other) for mine, other in zip(ours.probes, exact.probes, strict=True)),
        "logits": float(np.max([deviation(*pair) for pair in zip(ours.logits, exact.logits, strict=True)])),
        "rows": deviation(ours.rows, exact.rows),
        "weights": deviation(ours.weights, exact.weights),
    }


class GraphedTrainer(Trainer):
    """A trainer whose steps after the first are graphs."""

    def __init__(self, model: Model, world: World, precision: Precision) -> None:
        super().__init__(model, world, precision, smooth=True)
        self._groups = [GroupShape(model.dim, self.shape.features)]
        queue = HostQueue() if world.device.type == "cpu" else CudaQueue(world.device)
        self._graph = GraphedStep(self.step, self._groups, queue, SIZE)
        self.difference = ""

    def train(self, number: int, size: int, moves: bool = True) -> tuple[Floats, Floats]:
        """Run the next step by a graph, and move the rows; return its logits and the gradients of its rows."""
        samples, ids, groups = self.batch(size)
        if number == 0:
            before = self._graph.state()
            plain = self.step.train(number, samples, groups)
            self.step.update()
            self.difference = self._graph.difference_from_eager(number, samples, groups, before, plain)
            logits, gradient = plain.logits, plain.gradients[0]
        else:
            pending = self._graph.submit(number, samples, groups, RATE, lambda: None)
            scored, encoded = self._graph.finish(pending)
            logits, gradient = scored.logits, decode_rows(encoded[0], self._groups[0].dim, "float32")
        self.move(ids, gradient)
        return logits, gradient


def graph_checks(models: Mapping[str, Model], device: torch.device, steps: int = STEPS) -> dict[str, Check]:
    """Return checks of each network's steps by graphs against those without, in each precision."""
    world = World(device=device)
    return {
        f"graph of {name}, {precision}": partial(
            _graph, f"graph of {name}, {precision}", model, world, precision, steps
        )
        for name, model in models.items()
        for precision in GRAPHS
    }


def _graph(name: str, model: Model, world: World, precision: Precision, steps: int) -> Iterator[Result]:
    plain = Trainer(model, world, precision, smooth=True)
    ours, again = (GraphedTrainer(model, world, precision) for _ in range(2))
    logits = [[trainer.train(number, SIZE)[0] for number in range(steps)] for trainer in (plain, ours, again)]
    found = {
        "logits": float(np.max([deviation(mine, other) for mine, other in zip(logits[1], logits[0], strict=True)])),
        "rows": deviation(ours.rows, plain.rows),
    }
    yield compared(name, found, dict.fromkeys(found, GRAPHS[precision]))
    same = np.array_equal(ours.rows, again.rows)
    bits = "the same bits" if same else "OTHER BITS"
    yield checked(f"{name}, twice", same and not ours.difference, f"{bits} in a second training; {ours.difference}")


def compiling_checks(models: Mapping[str, Model], device: torch.device) -> dict[str, Check]:
    """Return checks of each network compiled by `torch.compile` against the plain one, and the gain in speed."""
    world = World(device=device)
    return {f"torch.compile of {name}": partial(_compiled, name, model, world) for name, model in models.items()}


def _compiled(name: str, model: Model, world: World) -> Iterator[Result]:
    require_compiler()
    # Compiled code rounds differently, which nothing but a kink makes large.
    plain, compiled = (Trainer(model, world, compiled=each, smooth=True) for each in (False, True))
    begin, found = perf_counter(), []
    for number, size in enumerate([*[2 * SIZE] * 5, LAST]):
        theirs, ours = plain.train(number, size), compiled.train(number, size)
        found += [deviation(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    took = perf_counter() - begin
    calls = {
        kind: Turn(partial(Trainer(model, world, compiled=each).train, 100, TIMED), loops=2)
        for kind, each in (("compiled", True), ("plain", False))
    }
    timed = alternate(calls, rounds=6, clock=perf_counter)
    steps = ", ".join(f"{kind} {each.median * 1e3:.2f} ms" for kind, each in timed.items())
    note = f"{took:.0f} s to compile and try; a step of {TIMED} samples: {steps}"
    yield compared(f"torch.compile of {name}", {"all": float(np.max(found))}, {"all": FLOAT32}, note)
