"""Checks of CUDA graphs against the same steps without one: every network, and the same bits in a second training."""

from collections.abc import Mapping

import numpy as np
import torch

from persia_cli.config.schema import Model
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.training.device import Precision
from persia_cli.training.distributed import World
from persia_cli.training.graphs.device_queue import CudaQueue, DeviceQueue
from persia_cli.training.graphs.step import GraphedStep
from persia_cli.training.inputs import GroupShape
from persia_cli.wire.messages import GroupRows
from scripts.gpu.batches import MOVED, Floats, Trainer, deviation, random_ids, random_samples
from scripts.gpu.host_queue import HostQueue
from scripts.gpu.report import Finding, Findings, Left, failed, judged, left_out

STEPS, SIZE, RATE = 20, 256, 0.05
ALLOWED: dict[Precision, float] = {"float32": 1e-5, "bfloat16": 2e-2}
"""Greatest relative deviation of logits, rows and weights after all steps."""


def queue_of(device: torch.device) -> DeviceQueue:
    """Return the queue of a GPU; on the CPU one that runs each step at once."""
    if device.type == "cpu":
        return HostQueue()

    return CudaQueue(device)


class GraphedTrainer(Trainer):
    """A trainer whose steps after the first are graphs."""

    def __init__(self, model: Model, world: World, precision: Precision) -> None:
        super().__init__(model, world, precision, smooth=True)
        self._groups = [GroupShape(model.dim, self.shape.features)]
        self._graph = GraphedStep(self.step, self._groups, queue_of(world.device), SIZE)
        self.difference = ""

    def train(self, number: int, size: int, moves: bool = True) -> tuple[Floats, Floats]:
        """Run the next step by a graph, and move the rows; return its logits and the gradients of its rows."""
        samples = random_samples(self.shape, size, self._rng)
        ids, group = random_ids(self.shape, size, self._rng)
        blocks = [encode_rows(part, "float32") for part in np.array_split(self.rows[ids], 2)]
        groups = [GroupRows(blocks, group.inverse, group.offsets)]
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
        greatest = float(np.abs(gradient).max(initial=1e-30))
        self.rows[ids] -= np.float32(MOVED / greatest) * gradient
        return logits, gradient


def check_graphs(models: Mapping[str, Model], device: torch.device, left: Left, steps: int = STEPS) -> Findings:
    """Compare each network's steps by graphs with those without, in each precision."""
    slowest = 0.0
    for name, model in models.items():
        for precision, allowed in ALLOWED.items():
            if left() < 1.5 * slowest:
                yield left_out(f"graph of {name} {precision}")
                continue
            before = left()
            try:
                yield _check(f"graph of {name} {precision}", model, World(device=device), precision, allowed, steps)
            except Exception as error:
                yield failed(f"graph of {name} {precision}", error)
            slowest = max(slowest, before - left())


def _check(name: str, model: Model, world: World, precision: Precision, allowed: float, steps: int) -> Finding:
    plain = Trainer(model, world, precision, smooth=True)
    ours, again = (GraphedTrainer(model, world, precision) for _ in range(2))
    trained = [[each.train(number, SIZE) for number in range(steps)] for each in (plain, ours, again)]
    apart = {
        "logits": max(deviation(mine[0], other[0]) for mine, other in zip(trained[1], trained[0], strict=True)),
        "rows": deviation(ours.rows, plain.rows),
    }
    same = np.array_equal(ours.rows, again.rows)
    figures = ", ".join(f"{part} {value:.1e}" for part, value in apart.items())
    passed = max(apart.values()) <= allowed and same and not ours.difference
    bits = "the same bits again" if same else "OTHER BITS in a second training"
    return judged(name, passed, f"{figures} (at most {allowed:.0e}); {bits}; {ours.difference}".rstrip("; "))
