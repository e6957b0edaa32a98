"""SASRec, self-attentive sequential recommendation: Kang and McAuley, arXiv 1808.09781."""

import torch
from torch import nn

from persia_cli.config.schema import SasRec
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import Dropout, LayerNorm
from persia_cli.model.requirements import sequence_and_candidate
from persia_cli.model.self_attention import Positions, SelfAttention
from persia_cli.model.shape import InputShape
from persia_cli.model.two_sides import TwoSides


class CausalBlock(nn.Module):
    """x + dropout(attention(norm(x))), then the same with a network of two layers (section 3.2 of the paper)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before, self.attention = LayerNorm(width), SelfAttention(width, heads)
        self.between, self.inner, self.outer = LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of the same; `seen` bool [n, length, length] has what each element attends to."""
        values = values + self.dropout(self.attention(self.before(values), seen))
        fed = self.outer(self.dropout(torch.relu(self.inner(self.between(values)))))
        result: torch.Tensor = values + self.dropout(fed)
        return result


class SequentialRecommendation(TwoSides):
    """The relevance of a candidate to a sequence: the dot product of its row and of the last state of causal blocks.

    A candidate after no sequence has the logit 0.
    """

    def __init__(self, shape: InputShape, settings: SasRec) -> None:
        """Raise ConfigError unless there is one sequence, one candidate and nothing else."""
        super().__init__()
        candidate, sequence = sequence_and_candidate(settings, shape)
        self.candidate, self.sequence = candidate.name, sequence.name
        length, dim = sequence.max_length or 1, candidate.dim
        self.positions, self.dropout = Positions(length, dim), Dropout(settings.dropout)
        self.blocks = nn.ModuleList(CausalBlock(dim, settings.heads, settings.dropout) for _ in range(settings.layers))
        self.norm = LayerNorm(dim)

    def vectors(self, batch: ModelBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each sample's last state, and its candidate's row."""
        values, mask = batch.sequences[self.sequence]
        order = torch.arange(mask.shape[1], device=mask.device)
        seen = mask.unsqueeze(1) & (order <= order.unsqueeze(1))
        values = self.dropout(values + self.positions(mask))
        for block in self.blocks:
            values = block(values, seen)
        is_last = (order + 1 == mask.sum(1, keepdim=True)).unsqueeze(2)
        state = (self.norm(values) * is_last).sum(1)
        return state, batch.pooled[self.candidate]


build = SequentialRecommendation
