"""Features as vectors of one dim, and as first-order weights: what factorization machines and their kin read."""

import torch
from torch import nn

from persia_cli.model.inputs import ModelBatch
from persia_cli.model.shape import InputShape

INIT_BOUND = 0.01
"""Bound of the uniform initial values of a learned vector, the same as that of rows."""


class Fields(nn.Module):
    """Every feature as one vector of `dim` columns: the pooled ones in the order of the data set, then the dense ones.

    A sparse feature's vector is its pooled row, a dense feature's a learned vector times its value.
    """

    dense: torch.Tensor | None

    def __init__(self, shape: InputShape, dim: int) -> None:
        super().__init__()
        self.features = shape.pooled
        self.count = len(self.features) + shape.dense
        start = torch.empty(shape.dense, dim).uniform_(-INIT_BOUND, INIT_BOUND)
        self.register_parameter("dense", nn.Parameter(start) if shape.dense else None)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return float32 [n, count, dim]; there is at least one sparse feature."""
        sparse = batch.stacked(self.features)
        if self.dense is None:
            return sparse
        return torch.cat([sparse, batch.dense.unsqueeze(2) * self.dense], dim=1)


class WeightedFields(nn.Module):
    """Fields whose first `tasks` columns are first-order weights, one for each task, and the others vectors.

    So a row is [w, v] of a factorization machine (Rendle, ICDM 2010): one table holds both, under one optimizer.
    """

    def __init__(self, shape: InputShape, dim: int) -> None:
        super().__init__()
        self.fields = Fields(shape, dim)
        self.count, self.dim, self._tasks = self.fields.count, dim - shape.tasks, shape.tasks

    def forward(self, batch: ModelBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of a sample's first-order weights, [n, tasks], and its vectors, [n, count, dim]; float32."""
        fields = self.fields(batch)
        return fields[:, :, : self._tasks].sum(1), fields[:, :, self._tasks :]
