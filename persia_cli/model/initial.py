"""Initial weights of linear layers: Glorot and Bengio (AISTATS 2010), and He et al. (arXiv 1502.01852)."""

from collections.abc import Callable

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


@torch.no_grad()
def initialize(network: nn.Module, init: Init) -> None:
    """Draw the weights of all linear layers by `init`, with biases of 0; `torch` leaves them as torch drew them."""
    if init == "torch":
        return
    draw = INITS[init]
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            draw(layer.weight)
        elif isinstance(layer, ParallelLinear):
            for copy in layer.weight:
                draw(copy.t())
        if isinstance(layer, nn.Linear | ParallelLinear) and layer.bias is not None:
            layer.bias.zero_()
