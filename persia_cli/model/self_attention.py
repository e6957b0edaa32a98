"""Self-attention within sequences, and the positions of their elements: Vaswani et al., arXiv 1706.03762."""

import torch
from torch import nn
from torch.nn.functional import embedding

from persia_cli.model.fields import learned_vectors
from persia_cli.model.layers import JoinedLinear
from persia_cli.model.ragged import RaggedLayout


class MultiHeadAttention(nn.Module):
    """The common part of attention within sequences by several heads."""

    def __init__(self, width: int, heads: int) -> None:
        """`heads` divides `width`."""
        super().__init__()
        self.heads, self.head = heads, width // heads
        # Query, key and value at once.
        self.project = JoinedLinear(width, width, parts=3)
        self.last = nn.Linear(width, width)

    def _attended(self, projected: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of [n, length, 3 width]; `seen` bool fits [n, heads, length, length]."""
        parts = projected.chunk(3, dim=2)
        heads = (self.heads, self.head)
        query, key, value = (part.view(*part.shape[:2], *heads).transpose(1, 2) for part in parts)
        # Torch's own attention has no reproducible gradient on every device.
        scores = query @ key.transpose(2, 3) * self.head**-0.5
        shares = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(3)
        return (shares @ value).transpose(1, 2).flatten(2)


class SelfAttention(MultiHeadAttention):
    """Attention of each element of a sequence to the elements that `seen` allows."""

    def forward(self, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of the same; `seen` bool [n, length, length] has what each element attends to."""
        attended: torch.Tensor = self.last(self._attended(self.project(values), seen.unsqueeze(1)))
        return attended


class CausalAttention(MultiHeadAttention):
    """Attention of each element of a sequence to itself and all earlier ones, in ragged batches."""

    def forward(self, values: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return [slots, width] of the same."""
        parts = layout.split(self.project(values))
        attended: torch.Tensor = self.last(layout.join([self._attended(part, earlier(part)) for part in parts]))
        return attended


def earlier(values: torch.Tensor) -> torch.Tensor:
    """Return bool [length, length] of values [n, length, ...]: which elements each one attends to, up to itself."""
    order = torch.arange(values.shape[1], device=values.device)
    return order <= order.unsqueeze(1)


class Positions(nn.Module):
    """A learned vector of each position in a sequence, counted from its newest element, which is the last one."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.vectors = learned_vectors(length, dim)

    def forward(self, mask: torch.Tensor, newest: int = 0) -> torch.Tensor:
        """Return [n, length, dim] of a mask bool [n, length], whose present elements come first.

        The newest element has the position `newest`, the one before it the next.
        """
        ages = mask.sum(1, keepdim=True) - 1 + newest - torch.arange(mask.shape[1], device=mask.device)
        return embedding(ages.clamp(min=0), self.vectors)
