"""A plain multi-layer perceptron on dense features and pooled embeddings."""

import torch
from torch import nn

from persia_cli.config.schema import Ffnn
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class FeedForward(nn.Module):
    """Dense features and embeddings side by side, through hidden layers to one logit per task."""

    def __init__(self, shape: InputShape, settings: Ffnn) -> None:
        super().__init__()
        self.features = shape.pooled
        inputs = shape.dense + sum(feature.dim for feature in self.features)
        self.network = fully_connected(inputs, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        return self.network(torch.cat([batch.dense, batch.concatenated(self.features)], dim=1))


def build(model: Ffnn, shape: InputShape) -> nn.Module:
    """Build the network for features that `require_fit` accepts."""
    return FeedForward(shape, model)
