"""BST, behaviour sequence transformer: Chen et al., arXiv 1905.06874."""

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from persia_cli.config.schema import Bst
from persia_cli.model.attending import AttendingNetwork
from persia_cli.model.layers import Dropout, LayerNorm
from persia_cli.model.self_attention import Positions, SelfAttention
from persia_cli.model.shape import InputShape


class TransformerBlock(nn.Module):
    """s = norm(x + attention(x)), then norm(s + V leaky_relu(W s + b) + c) (equations 4 to 6 of the paper).

    The last norm has an offset only if `offset` is true.
    """

    def __init__(self, width: int, heads: int, inner: int, dropout: float, offset: bool) -> None:
        super().__init__()
        self.attention, self.attended = SelfAttention(width, heads), LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = LayerNorm(width, bias=offset)
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of the same; `seen` bool [n, length, length] has what each element attends to."""
        values = self.attended(values + self.dropout(self.attention(values, seen)))
        fed = self.outer(leaky_relu(self.inner(values)))
        result: torch.Tensor = self.norm(values + self.dropout(fed))
        return result


class BehaviourTransformer(nn.Module):
    """A sequence with its target as the newest element through transformer blocks; the mean over its elements."""

    def __init__(self, dim: int, length: int, settings: Bst) -> None:
        super().__init__()
        self.positions = Positions(length + 1, dim)
        # An offset of the last block is the same for all samples. The linear layer that follows has its own, or batch
        # normalisation after it subtracts it.
        self.blocks = nn.ModuleList(
            TransformerBlock(
                dim, settings.heads, settings.inner, settings.attention_dropout, offset=number < settings.layers
            )
            for number in range(1, settings.layers + 1)
        )

    def forward(self, target: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return [n, dim] of a target [n, dim] and a sequence [n, length, dim], its mask bool [n, length]."""
        newest = target + self.positions.vectors[0]
        values = torch.cat([newest.unsqueeze(1), values + self.positions(mask, newest=1)], dim=1)
        there = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        seen = there.unsqueeze(1).expand(-1, there.shape[1], -1)
        for block in self.blocks:
            values = block(values, seen)
        present = there.unsqueeze(2).to(values.dtype)
        return (values * present).sum(1) / present.sum(1)


def build(shape: InputShape, model: Bst) -> nn.Module:
    """Build the network; raises ConfigError for targets and sequences that do not fit each other."""
    return AttendingNetwork(
        shape, model, lambda target, sequence: BehaviourTransformer(target.dim, sequence.max_length or 1, model)
    )
