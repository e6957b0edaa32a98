"""Attentional factorization machine: Xiao et al., arXiv 1708.04617."""

import torch
from torch import nn

from persia_cli.config.schema import Afm
from persia_cli.model.fields import WeightedFields
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import Dropout
from persia_cli.model.shape import InputShape


class AttentionalFactorizationMachine(nn.Module):
    """A bias, first-order weights, and p of the products of all pairs, each weighted by attention (section 3).

    Pair (i, j) has the weight a_ij = softmax(h relu(W (v_i * v_j) + b)) among all pairs, where * is column by column.
    The first `tasks` columns of a row are its id's first-order weights, one for each task, the others its vector.
    """

    def __init__(self, shape: InputShape, settings: Afm) -> None:
        super().__init__()
        self.fields = WeightedFields(shape, settings.dim)
        dim = self.fields.dim
        self.attention = nn.Sequential(
            nn.Linear(dim, settings.attention), nn.ReLU(), nn.Linear(settings.attention, 1, bias=False)
        )
        self.dropout = Dropout(settings.dropout)
        self.last = nn.Linear(dim, shape.tasks)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        first_order, vectors = self.fields(batch)
        products = products_of_pairs(vectors)
        weighed: torch.Tensor = (self.attention(products).softmax(1) * products).sum(1)
        return first_order + self.last(self.dropout(weighed))


def products_of_pairs(vectors: torch.Tensor) -> torch.Tensor:
    """Return [n, fields (fields - 1) / 2, dim]: vector i times vector j for all i < j, ordered by i, then j."""
    # Neither gathers nor a whole square of products: half the time, and gradients add up in one order on each device.
    rows = vectors.unbind(1)[:-1]
    return torch.cat([row.unsqueeze(1) * vectors[:, first:] for first, row in enumerate(rows, start=1)], dim=1)


build = AttentionalFactorizationMachine
