"""Logistic regression on ids and dense features: Richardson et al., WWW 2007, doi 10.1145/1242572.1242643."""

import torch
from torch import nn

from persia_cli.config.schema import Lr
from persia_cli.model.fields import Fields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape


class LogisticRegression(nn.Module):
    """A bias, the weights of a sample's ids, and weights of dense features times their values, added up.

    A row is its id's weights, one for each task. The settings add nothing to that.
    """

    def __init__(self, shape: InputShape, settings: Lr) -> None:
        super().__init__()
        self.weights = Fields(shape, shape.tasks)
        self.bias = nn.Parameter(torch.zeros(shape.tasks))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        weights: torch.Tensor = self.weights(batch)
        return self.bias + weights.sum(1)


build = LogisticRegression
