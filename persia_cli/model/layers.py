"""Fully connected layers, shared by the networks."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def fully_connected(inputs: int, hidden: Sequence[int], outputs: int, last_relu: bool = False) -> nn.Sequential:
    """Linear layers of the widths given with ReLU between them, and after the last one if `last_relu`."""
    widths = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))
