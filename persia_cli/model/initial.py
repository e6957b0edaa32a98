"""Initial weights of linear layers: Glorot and Bengio (AISTATS 2010), and He et al. (arXiv 1502.01852)."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from persia_cli.config.schema.perceptrons import Init
from persia_cli.model.layers import ParallelLinear

INITS: dict[Init, Callable[[torch.Tensor], torch.Tensor]] = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "he_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "he_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}


@runtime_checkable
class HasMatrices(Protocol):
    """A module whose parameters contain several matrices: their bounds are those of one, not of all together."""

    def matrices(self) -> Sequence[torch.Tensor]:
        """Return each matrix [outputs, inputs] as a view of the parameters."""


@runtime_checkable
class OwnInitialWeights(Protocol):
    """A module with the same initial weights for every `init`."""

    def set_initial_weights(self) -> None:
        """Set the parameters."""


@torch.no_grad()
def initialize(network: nn.Module, init: Init) -> None:
    """Draw the weights of all linear layers by `init`, with biases of 0; `torch` leaves them unchanged.

    Each matrix is drawn by itself, also where a parameter has several.
    """
    if init == "torch":
        return
    draw = INITS[init]
    for layer in network.modules():
        plain = [layer.weight] if isinstance(layer, nn.Linear) else []
        for matrix in layer.matrices() if isinstance(layer, HasMatrices) else plain:
            draw(matrix)
        if isinstance(layer, nn.Linear | ParallelLinear) and layer.bias is not None:
            layer.bias.zero_()
    for layer in network.modules():
        if isinstance(layer, OwnInitialWeights):
            layer.set_initial_weights()
