"""DeepFM: Guo et al., arXiv 1703.04247."""

import torch
from torch import nn

from persia_cli.config.schema import DeepFm
from persia_cli.model.fields import WeightedFields
from persia_cli.model.fm import pair_products
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.shape import InputShape


class DeepFactorizationMachine(nn.Module):
    """A factorization machine and a multi-layer perceptron on the same vectors, added up (section 2.1 of the paper).

    The first `tasks` columns of a row are its id's first-order weights, one for each task, the others its vector.
    With several tasks the products of vectors are part of every task's logit. A dense feature has weights and a
    vector too, both times its value.
    """

    def __init__(self, shape: InputShape, settings: DeepFm) -> None:
        super().__init__()
        self.fields = WeightedFields(shape, settings.dim)
        inputs = self.fields.count * self.fields.dim
        self.network = fully_connected(inputs, settings.hidden, shape.tasks, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first_order, vectors = self.fields(batch)
        return self.network(vectors.flatten(1)) + first_order + pair_products(vectors)


build = DeepFactorizationMachine
