"""A network that computes nothing, so that what a step costs is what is around the network."""

import torch
from torch import nn

from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape


class Nothing(nn.Module):
    """Logits are the mean of a sample's vectors: every row gets a gradient, and one weight is trained."""

    def __init__(self, shape: InputShape) -> None:
        """Take any shape with one label."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, 1]."""
        means = [group.mean((1, 2)) for group in batch.groups]
        return (torch.stack(means).sum(0) * self.weight).unsqueeze(1)
