"""GDCN, gated deep and cross network: Wang et al., arXiv 2311.04635."""

import torch
from torch import nn

from persia_cli.config.schema import Gdcn
from persia_cli.model.dcn_v2 import DeepCross
from persia_cli.model.shape import InputShape


class GatedCross(nn.Module):
    """A cross layer with an information gate: x0 * (W x + b) * sigmoid(G x) + x (equation 2 of the paper)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cross = nn.Linear(width, width)
        self.gate = nn.Linear(width, width, bias=False)

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return [n, width], given the input x0 of all cross layers and that of this one, both [n, width]."""
        return first * self.cross(last) * torch.sigmoid(self.gate(last)) + last


def build(shape: InputShape, model: Gdcn) -> nn.Module:
    """Build the network for features that `require_fit` accepts: that of DCN v2, with other cross layers."""
    return DeepCross(shape, model, GatedCross)
