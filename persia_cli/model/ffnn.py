"""A plain multi-layer perceptron on dense features and pooled embeddings."""

import torch
from torch import nn

from persia_cli.config.schema import Ffnn
from persia_cli.model.fields import SideBySide
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class FeedForward(nn.Module):
    """Dense features and embeddings, concatenated, through hidden layers to one logit per task."""

    def __init__(self, shape: InputShape, settings: Ffnn) -> None:
        super().__init__()
        self.inputs = SideBySide(shape, settings)
        self.network = fully_connected(self.inputs.width, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        return self.network(self.inputs(batch))


build = FeedForward
