"""The inputs of networks: concatenated features, vectors of one dim, and first-order weights with vectors."""

import torch
from torch import nn

from persia_cli.config.schema.perceptrons import Concatenated
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape

INIT_BOUND = 0.01
"""Bound of the uniform initial values of a learned vector, the same as that of rows."""


class SideBySide(nn.Module):
    """All features of a sample in one vector of `width` columns: the dense ones, then the rows of the pooled ones.

    With `dense=embed` each dense feature is a learned vector of `dim` columns times its value, else the value alone.
    """

    vectors: torch.Tensor | None

    def __init__(self, shape: InputShape, settings: Concatenated) -> None:
        super().__init__()
        self.features = shape.pooled
        embeds = settings.dense == "embed" and shape.dense > 0
        self.register_parameter("vectors", learned_vectors(shape.dense, settings.dim) if embeds else None)
        self.width = shape.dense * (settings.dim if embeds else 1) + sum(feature.dim for feature in self.features)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return float32 [n, width]."""
        dense = batch.dense if self.vectors is None else (batch.dense.unsqueeze(2) * self.vectors).flatten(1)
        return torch.cat([dense, batch.concatenated(self.features)], dim=1)


class Fields(nn.Module):
    """Every feature as one vector of `dim` columns: the pooled ones in the order of the data set, then the dense ones.

    A sparse feature's vector is its pooled row, a dense feature's a learned vector times its value.
    """

    dense: torch.Tensor | None

    def __init__(self, shape: InputShape, dim: int) -> None:
        super().__init__()
        self.features = shape.pooled
        self.count = len(self.features) + shape.dense
        self.register_parameter("dense", learned_vectors(shape.dense, dim) if shape.dense else None)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return float32 [n, count, dim]; there is at least one sparse feature."""
        sparse = batch.stacked(self.features)
        if self.dense is None:
            return sparse
        return torch.cat([sparse, batch.dense.unsqueeze(2) * self.dense], dim=1)


class WeightedFields(nn.Module):
    """Fields whose first `tasks` columns are first-order weights, one for each task, and the others vectors.

    So a row is [w, v] of a factorization machine (Rendle, ICDM 2010): one table has both, under one optimizer.
    """

    def __init__(self, shape: InputShape, dim: int) -> None:
        super().__init__()
        self.fields = Fields(shape, dim)
        self.count, self.dim, self._tasks = self.fields.count, dim - shape.tasks, shape.tasks

    def forward(self, batch: ModelBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of a sample's first-order weights, [n, tasks], and its vectors, [n, count, dim]; float32."""
        fields = self.fields(batch)
        return fields[:, :, : self._tasks].sum(1), fields[:, :, self._tasks :]


def learned_vectors(count: int, dim: int) -> nn.Parameter:
    """Return [count, dim], initialized as rows are."""
    return nn.Parameter(torch.empty(count, dim).uniform_(-INIT_BOUND, INIT_BOUND))
