"""Deep interest network: Zhou et al., arXiv 1706.06978."""

from collections.abc import Sequence

import torch
from torch import nn

from persia_cli.config.schema import Din
from persia_cli.model.attending import AttendingNetwork
from persia_cli.model.layers import LayerStyle, fully_connected
from persia_cli.model.shape import InputShape


class Attention(nn.Module):
    """The weighted sum of a sequence; a network weights each element by the element and the target.

    This is the local activation unit of section 4.3 of the paper. Weights are not normalised by a softmax, so their sum
    expresses the strength of an interest. The unit reads element, target, their difference and their product.
    """

    def __init__(self, dim: int, hidden: Sequence[int], style: LayerStyle) -> None:
        super().__init__()
        self.unit = fully_connected(4 * dim, hidden, 1, style)

    def forward(self, target: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [n, dim] of a target [n, dim] and a sequence [n, length, dim], its mask bool [n, length]."""
        wanted = target.unsqueeze(1).expand_as(values)
        weights = self.unit(torch.cat([values, wanted, values - wanted, values * wanted], dim=2))
        weighed: torch.Tensor = weights.masked_fill(~mask.unsqueeze(2), 0.0) * values
        return weighed.sum(1)


def build(shape: InputShape, model: Din) -> nn.Module:
    """Build the network; raises ConfigError for targets and sequences that do not fit each other."""
    unit = LayerStyle("prelu")
    return AttendingNetwork(shape, model, lambda target, _: Attention(target.dim, model.attention, unit))
