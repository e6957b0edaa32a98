"""A network that computes nothing, so that what a step costs is what is around the network."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape
from persia_cli.training.graphs import training
from persia_cli.training.graphs.device_queue import Copies
from scripts.measure.gpu.host_queue import HostQueue, HostSlot


class Nothing(nn.Module):
    """Logits are the mean of a sample's vectors: every row gets a gradient, and one weight is trained."""

    def __init__(self, shape: InputShape) -> None:
        """Take any shape with one label."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, 1]."""
        means = [group.mean((1, 2)) for group in batch.groups]
        return (torch.stack(means).sum(0) * self.weight).unsqueeze(1)


class Replayed(Nothing):
    """The same as a graph whose device takes no time: what is left is the work of the host of a GPU."""

    def __init__(self, shape: InputShape) -> None:
        super().__init__(shape)
        training.queue_for = lambda *_: EmptyQueue()


class EmptyQueue(HostQueue):
    """A queue that makes the copies of the host, and runs the first graph alone, whose result is compared."""

    def slot(self, given: torch.Tensor, result: torch.Tensor) -> HostSlot:
        """Return a slot whose result is random."""
        slot = super().slot(given, result)
        values = np.random.default_rng(0).normal(0.0, 0.01, len(slot.result) // 4)
        slot.result[...] = values.astype(np.float32).view(np.uint8)
        return slot

    def submit(
        self,
        slot: HostSlot,
        graph: Callable[[], None],
        copies: Copies,
        bytes_in: int,
        bytes_out: int,
        seed: Callable[[], int],
    ) -> None:
        """Copy a batch."""
        if not self.submitted:
            super().submit(slot, graph, copies, bytes_in, bytes_out, seed)
        self.move(copies)
