"""HSTU, hierarchical sequential transduction units: Zhai et al., arXiv 2402.17152.

The logit of a candidate is the dot product of its row and of a sequence's last state; after no sequence it is 0.
"""

import torch
from torch import nn
from torch.nn.functional import embedding, pad, silu

from persia_cli.config.schema import Hstu
from persia_cli.model.causal import CausalNetwork
from persia_cli.model.layers import Dropout, JoinedLinear, LayerNorm
from persia_cli.model.ragged import RaggedLayout
from persia_cli.model.self_attention import earlier
from persia_cli.model.shape import InputShape

EPS = 1e-6
"""Of the norms, as in the authors' code."""
SPREAD = 0.02
"""Standard deviation of the initial biases, as in the authors' code."""
BUCKETS, BUCKET = 129, 0.301
"""Number of the buckets of times, and the logarithm of the ratio of two that follow each other, as in their code."""


def buckets_of(gaps: torch.Tensor) -> torch.Tensor:
    """Return the bucket of the time from each element j to the moment that element i is asked for the next one.

    That moment is the time of the next element, or after the newest one of the sample, so the time is the sum of the
    gaps from j to i. `gaps` are float32 [n, length]; the result is int32 [n, i, j], of no meaning for j after i.
    """
    # In float64, training and exported models have the same buckets: times at a border of two are too rare.
    until = gaps.double().cumsum(1)
    since = pad(until[:, :-1], (1, 0))
    times = until.unsqueeze(2) - since.unsqueeze(1)
    return times.clamp_(min=1.0).log_().div_(BUCKET).clamp_(max=BUCKETS - 1).int()


def looked_up(weights: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
    """Return the weight, of weights [BUCKETS, 1], of each bucket, in the shape of `buckets`."""
    # The gradient of embedding takes 20 times as long on a CPU, and that of index_select has no fixed order on a GPU.
    if weights.is_cuda:
        return embedding(buckets, weights).squeeze(-1)
    return weights.squeeze(1).index_select(0, buckets.flatten()).view_as(buckets)


class TransductionUnit(nn.Module):
    """x + f(dropout(norm(A v) * u)), where u, v, q, k are silu(W norm(x)), and A is causal attention without a softmax.

    A_ij is silu(q_i k_j + b_(i - j) + c_ij) / n up to the element itself, with the greatest length n (equations 1 to 3
    of the paper). The learned biases are b of each distance and, if the sequence has times, c of the bucket of a time.
    """

    def __init__(self, width: int, heads: int, length: int, dropout: float, timed: bool = False) -> None:
        """`heads` divides `width`; a unit that is `timed` reads layouts with times."""
        super().__init__()
        self.heads, self.head, self.length = heads, width // heads, length
        self.before, self.between = LayerNorm(width, eps=EPS), LayerNorm(width, eps=EPS)
        # u, v, q and k at once.
        self.project, self.last = JoinedLinear(width, width, 4, bias=False), nn.Linear(width, width)
        self.distances = nn.Parameter(torch.randn(length, 1) * SPREAD)
        self.times = nn.Parameter(torch.randn(BUCKETS, 1) * SPREAD) if timed else None
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return [slots, width] of the same."""
        gate, *rest = silu(self.project(self.before(values))).chunk(4, dim=1)
        parts = [layout.split(part.view(-1, self.heads, self.head)) for part in rest]
        none: list[torch.Tensor | None] = [None] * len(layout.widths)
        blocks = zip(*parts, layout.buckets or none, strict=True)
        attended = layout.join([self._attended(*block) for block in blocks])
        result: torch.Tensor = values + self.last(self.dropout(gate * self.between(attended)))
        return result

    def _attended(
        self, value: torch.Tensor, query: torch.Tensor, key: torch.Tensor, buckets: torch.Tensor | None
    ) -> torch.Tensor:
        """Return [n, length, width] of [n, length, heads, head] each."""
        seen = earlier(value)
        order = torch.arange(len(seen), device=value.device)
        bias = embedding((order.unsqueeze(1) - order).clamp(min=0), self.distances).squeeze(2)
        if self.times is not None and buckets is not None:
            bias = (bias + looked_up(self.times, buckets)).unsqueeze(1)
        scores = query.transpose(1, 2) @ key.permute(0, 2, 3, 1) + bias
        weights = silu(scores) * (seen / self.length)
        return (weights @ value.transpose(1, 2)).transpose(1, 2).flatten(2)


class TransductionNetwork(CausalNetwork):
    """A causal network of units that may read times."""

    def states(self, rows: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return the state of each slot, which depends on the elements up to its own, float32 [slots, dim]."""
        if layout.gaps is not None:
            layout = layout._replace(buckets=[buckets_of(gaps) for gaps in layout.split(layout.gaps)])
        return super().states(rows, layout)


def build(shape: InputShape, model: Hstu) -> nn.Module:
    """Build the network; raises ConfigError unless there is one sequence, one candidate and nothing else but times."""

    def block(dim: int, length: int) -> nn.Module:
        return TransductionUnit(dim, model.heads, length, model.dropout, bool(shape.times_of))

    return TransductionNetwork(shape, model, block)
