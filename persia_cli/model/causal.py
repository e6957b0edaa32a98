"""The common part of networks that predict the next element of a sequence from those before: SASRec, LiGR, HSTU."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import embedding

from persia_cli.config.schema.sequences import Sequential
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import Dropout, LayerNorm
from persia_cli.model.ragged import RaggedLayout, Tokens, padded
from persia_cli.model.requirements import sequence_and_candidate
from persia_cli.model.self_attention import Positions
from persia_cli.model.shape import InputShape
from persia_cli.model.two_sides import Sides, TwoSides


class CausalNetwork(TwoSides):
    """The relevance of a candidate to a sequence: the dot product of its row and of the last state of causal blocks.

    A candidate after no sequence has the logit 0. A state depends on no later element, so each one can learn to predict
    the element after it.
    """

    def __init__(self, shape: InputShape, settings: Sequential, block: Callable[[int, int], nn.Module]) -> None:
        """Build `block` of a sequence's dim and greatest length for each layer: of values [slots, dim] and a layout.

        Raise ConfigError unless there is one sequence, one candidate and nothing else.
        """
        super().__init__()
        candidate, sequence = sequence_and_candidate(settings, shape)
        self.candidate, self.sequence = candidate.name, sequence.name
        self.timed = bool(shape.times_of)
        length, dim = sequence.max_length or 1, candidate.dim
        self.positions, self.dropout = Positions(length, dim), Dropout(settings.dropout)
        self.blocks = nn.ModuleList(block(dim, length) for _ in range(settings.layers))
        self.norm = LayerNorm(dim)

    def forward(self, batch: ModelBatch | Tokens) -> torch.Tensor | Sides:
        """Return what all networks of two sides do; of tokens, their states float32 [slots, dim]."""
        return self.states(*batch) if isinstance(batch, Tokens) else super().forward(batch)

    def states(self, rows: torch.Tensor, layout: RaggedLayout) -> torch.Tensor:
        """Return the state of each slot, which depends on the elements up to its own, float32 [slots, dim]."""
        values = self.dropout(rows + embedding(layout.ages, self.positions.vectors))
        for block in self.blocks:
            values = block(values, layout)
        normal: torch.Tensor = self.norm(values)
        return normal

    def users(self, batch: ModelBatch) -> torch.Tensor:
        """Return each sample's last state."""
        values, mask = batch.sequences[self.sequence]
        layout = padded(mask, batch.dense if self.timed else None)
        [states] = layout.split(self.states(values.flatten(0, 1), layout))
        is_last = torch.arange(1, mask.shape[1] + 1, device=mask.device) == mask.sum(1, keepdim=True)
        return (states * is_last.unsqueeze(2)).sum(1)

    def items(self, batch: ModelBatch) -> torch.Tensor:
        """Return the row of each sample's candidate."""
        return batch.pooled[self.candidate]
