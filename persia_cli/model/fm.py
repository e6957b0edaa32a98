"""Factorization machine: Rendle, ICDM 2010, doi 10.1109/ICDM.2010.127."""

import torch
from torch import nn

from persia_cli.config.schema import Fm
from persia_cli.model.fields import WeightedFields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape


class FactorizationMachine(nn.Module):
    """A bias, first-order weights and the dot products of all pairs of vectors, added up (equation 1 of the paper).

    The first `tasks` columns of a row are its id's first-order weights, one for each task, the others its vector.
    With several tasks the products of vectors are part of every task's logit.
    """

    def __init__(self, shape: InputShape, settings: Fm) -> None:
        super().__init__()
        self.fields = WeightedFields(shape, settings.dim)
        self.bias = nn.Parameter(torch.zeros(shape.tasks))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first_order, vectors = self.fields(batch)
        return self.bias + first_order + pair_products(vectors)


def pair_products(vectors: torch.Tensor) -> torch.Tensor:
    """Return [n, 1], the sum of the dot products of all pairs of different fields, of vectors [n, fields, dim].

    Half of (square of the sum - sum of the squares), which takes a time linear in the fields: Rendle, ICDM 2010.
    """
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)


build = FactorizationMachine
