"""HSTU, hierarchical sequential transduction units: Zhai et al., arXiv 2402.17152.

The logit of a candidate is the dot product of its row and of a sequence's last state; after no sequence it is 0.
"""

import torch
from torch import nn
from torch.nn.functional import embedding, silu

from persia_cli.config.schema import Hstu
from persia_cli.model.causal import CausalNetwork
from persia_cli.model.layers import Dropout, JoinedLinear, LayerNorm
from persia_cli.model.ragged import RaggedLayout
from persia_cli.model.self_attention import earlier
from persia_cli.model.shape import InputShape

EPS = 1e-6
"""Of the norms, as in the authors' code."""
SPREAD = 0.02
"""Standard deviation of the initial biases of positions, as in the authors' code."""


class TransductionUnit(nn.Module):
    """x + f(dropout(norm(A v) * u)), where u, v, q, k are silu(W norm(x)), and A is causal attention without a softmax.

    A_ij is silu(q_i k_j + b_(i - j)) / n up to the element itself, with a learned bias of each distance, and n the
    greatest length (equations 1 to 3 of the paper, without times).
    """

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        """`heads` divides `width`."""
        super().__init__()
        self.heads, self.head, self.length = heads, width // heads, length
        self.before, self.between = LayerNorm(width, eps=EPS), LayerNorm(width, eps=EPS)
        # u, v, q and k at once.
        self.project, self.last = JoinedLinear(width, width, 4, bias=False), nn.Linear(width, width)
        self.distances = nn.Parameter(torch.randn(length, 1) * SPREAD)
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return [slots, width] of the same."""
        gate, *rest = silu(self.project(self.before(values))).chunk(4, dim=1)
        blocks = zip(*(layout.split(part.view(-1, self.heads, self.head)) for part in rest), strict=True)
        attended = layout.join([self._attended(*block) for block in blocks])
        result: torch.Tensor = values + self.last(self.dropout(gate * self.between(attended)))
        return result

    def _attended(self, value: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of [n, length, heads, head] each."""
        seen = earlier(value)
        order = torch.arange(len(seen), device=value.device)
        bias = embedding((order.unsqueeze(1) - order).clamp(min=0), self.distances).squeeze(2)
        scores = query.transpose(1, 2) @ key.permute(0, 2, 3, 1) + bias
        weights = silu(scores) * (seen / self.length)
        return (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)


def build(shape: InputShape, model: Hstu) -> nn.Module:
    """Build the network; raises ConfigError unless there is one sequence, one candidate and nothing else."""

    def block(dim: int, length: int) -> nn.Module:
        return TransductionUnit(dim, model.heads, length, model.dropout)

    return CausalNetwork(shape, model, block)
