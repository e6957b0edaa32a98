"""The common part of networks that read sequences with a target: DIN, DIEN, BST."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from persia_cli.config.schema.sequences import Attending
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.outputs import Output
from persia_cli.model.requirements import attended_pairs
from persia_cli.model.shape import FeatureShape, InputShape

Reader = Callable[[FeatureShape, FeatureShape], nn.Module]
"""Builds the reader of a target and its sequence: of a target [n, dim], values [n, length, dim] and a mask it returns
[n, dim]."""


class AttendingNetwork(nn.Module):
    """Dense features, pooled embeddings and read sequences, concatenated, through a multi-layer perceptron.

    Raises ConfigError for targets and sequences that do not fit each other.
    """

    def __init__(self, shape: InputShape, settings: Attending, reader: Reader) -> None:
        super().__init__()
        pairs = attended_pairs(settings.attend, shape)
        self.inputs = SideBySide(shape, settings)
        self.pairs = [(target.name, sequence.name) for target, sequence in pairs]
        self.readers = nn.ModuleList(reader(target, sequence) for target, sequence in pairs)
        width = self.inputs.width + sum(target.dim for target, _ in pairs)
        self.network = fully_connected(width, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> Output:
        """Return logits float32 [n, tasks]."""
        read = [
            reader(batch.pooled[target], *batch.sequences[sequence])
            for reader, (target, sequence) in zip(self.readers, self.pairs, strict=True)
        ]
        return self.logits(batch, read)

    def logits(self, batch: ModelBatch, read: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return logits float32 [n, tasks] of a batch and the reader's output for each pair, [n, dim]."""
        logits: torch.Tensor = self.network(torch.cat([self.inputs(batch), *read], dim=1))
        return logits
