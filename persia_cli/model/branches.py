"""Linear branches with batch normalisation: the network of the original Persia's census example.

Source: the layers of that example, `adult-income` of github.com/PersiaML/PERSIA.
"""

import torch
from torch import nn

from persia_cli.config.schema import Branches
from persia_cli.model.batch_norm import BatchNorm
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape


class LinearBranches(nn.Module):
    """Dense features and embeddings each through a linear layer and batch normalisation, then linear layers on both.

    There is no activation, so normalisation is its only non-linear part. The original's layers before normalisation
    have biases, which normalisation subtracts again.
    """

    def __init__(self, shape: InputShape, settings: Branches) -> None:
        super().__init__()
        dense, sparse = settings.dense, settings.sparse
        self.features = shape.pooled
        inputs = sum(feature.dim for feature in self.features)
        self.dense = nn.Sequential(nn.Linear(shape.dense, dense, bias=False), BatchNorm(dense))
        self.sparse = nn.Sequential(nn.Linear(inputs, sparse, bias=False), BatchNorm(sparse))
        widths = [dense + sparse, *settings.hidden, shape.tasks]
        self.last = nn.Sequential(*map(nn.Linear, widths[:-1], widths[1:]))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return logits float32 [n, tasks]."""
        branches = [self.dense(batch.dense), self.sparse(batch.concatenated(self.features))]
        return self.last(torch.cat(branches, dim=1))


build = LinearBranches
