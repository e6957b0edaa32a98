"""Fully connected layers, shared by the networks."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn


def fully_connected(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    last_relu: bool = False,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Linear layers of the widths given with ReLU (or `activation`) between them, and after the last if `last_relu`."""
    widths = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


class ParallelLinear(nn.Module):
    """Linear layers of one shape side by side, computed at once; they begin as torch's `nn.Linear` does."""

    def __init__(self, copies: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(copies, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(copies, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float [copies, n, outputs] of float [copies, n, inputs]: a layer for each."""
        return torch.baddbmm(self.bias, inputs, self.weight)


def parallel_networks(
    copies: int, inputs: int, hidden: Sequence[int], outputs: int, last_relu: bool = False
) -> nn.Sequential:
    """As many networks as `copies`, each as `fully_connected` makes them, from [copies, n, inputs] at once."""
    widths = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [ParallelLinear(copies, before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))
