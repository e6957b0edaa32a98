"""LiGR, gated blocks of attention: Borisyuk et al., arXiv 2502.03417; SwiGLU layers: Shazeer, arXiv 2002.05202.

The logit of a candidate is the dot product of its row and of a sequence's last state; after no sequence it is 0.
"""

import torch
from torch import nn
from torch.nn.functional import silu

from persia_cli.config.schema import Ligr
from persia_cli.model.causal import CausalNetwork
from persia_cli.model.layers import Dropout, JoinedLinear, LayerNorm
from persia_cli.model.ragged import RaggedLayout
from persia_cli.model.self_attention import CausalAttention
from persia_cli.model.shape import InputShape


class GatedBlock(nn.Module):
    """x + sigmoid(W x + b) * f(norm(x)), where f is causal attention at first, and then V (silu(A x) * B x)."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.before, self.attention = LayerNorm(width), CausalAttention(width, heads)
        self.between = LayerNorm(width)
        self.inner, self.outer = JoinedLinear(width, inner, 2, bias=False), nn.Linear(inner, width, bias=False)
        self.attended, self.fed = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return [slots, width] of the same."""
        added = self.dropout(self.attention(self.before(values), layout))
        values = values + torch.sigmoid(self.attended(values)) * added
        gate, up = self.inner(self.between(values)).chunk(2, dim=1)
        added = self.dropout(self.outer(self.dropout(silu(gate) * up)))
        result: torch.Tensor = values + torch.sigmoid(self.fed(values)) * added
        return result


def build(shape: InputShape, model: Ligr) -> nn.Module:
    """Build the network; raises ConfigError unless there is one sequence, one candidate and nothing else."""

    def block(dim: int, length: int) -> nn.Module:
        return GatedBlock(dim, model.heads, model.expansion * dim, model.dropout)

    return CausalNetwork(shape, model, block)
