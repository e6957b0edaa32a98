"""SASRec, self-attentive sequential recommendation: Kang and McAuley, arXiv 1808.09781.

The logit of a candidate is the dot product of its row and of a sequence's last state; after no sequence it is 0.
"""

import torch
from torch import nn

from persia_cli.config.schema import SasRec
from persia_cli.model.causal import CausalNetwork
from persia_cli.model.layers import Dropout, LayerNorm
from persia_cli.model.ragged import RaggedLayout
from persia_cli.model.self_attention import CausalAttention
from persia_cli.model.shape import InputShape


class CausalBlock(nn.Module):
    """x + dropout(attention(norm(x))), then the same with a network of two layers (section 3.2 of the paper)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before, self.attention = LayerNorm(width), CausalAttention(width, heads)
        self.between, self.inner, self.outer = LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return [slots, width] of the same."""
        values = values + self.dropout(self.attention(self.before(values), layout))
        fed = self.outer(self.dropout(torch.relu(self.inner(self.between(values)))))
        result: torch.Tensor = values + self.dropout(fed)
        return result


def build(shape: InputShape, model: SasRec) -> nn.Module:
    """Build the network; raises ConfigError unless there is one sequence, one candidate and nothing else."""
    return CausalNetwork(shape, model, lambda dim, _: CausalBlock(dim, model.heads, model.dropout))
