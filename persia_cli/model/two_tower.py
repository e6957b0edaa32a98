"""Two towers for retrieval: Covington et al., RecSys 2016, and Yi et al., RecSys 2019, doi 10.1145/3298689.3346996."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import normalize

from persia_cli.config.schema import TwoTower
from persia_cli.model.inputs import ModelBatch
from persia_cli.model.layers import fully_connected, style_of
from persia_cli.model.requirements import tower_features
from persia_cli.model.shape import FeatureShape, InputShape
from persia_cli.model.two_sides import TwoSides


class Tower(nn.Module):
    """A perceptron on some features; its output, of length 1, represents a user or an item."""

    def __init__(self, features: Sequence[FeatureShape], dense: int, settings: TwoTower) -> None:
        super().__init__()
        self.features, self.reads_dense = tuple(features), dense > 0
        inputs = dense + sum(feature.dim for feature in features)
        self.network = fully_connected(inputs, settings.hidden, settings.width, style_of(settings))

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Return vectors float32 [n, width]."""
        rows = batch.concatenated(self.features)
        vectors: torch.Tensor = self.network(torch.cat([batch.dense, rows], dim=1) if self.reads_dense else rows)
        return normalize(vectors, dim=1)


class TwoTowers(TwoSides):
    """The dot product of a user's and an item's vector, over a temperature: each tower reads the features of its side.

    So items can be found by their vectors alone, which depend on no user. Dense features are the user's.
    """

    def __init__(self, shape: InputShape, settings: TwoTower) -> None:
        super().__init__()
        user, item = tower_features(settings.user, settings.item, shape)
        self.user, self.item = Tower(user, shape.dense, settings), Tower(item, 0, settings)
        self.temperature = settings.temperature

    def users(self, batch: ModelBatch) -> torch.Tensor:
        """Return each sample's vector of the user."""
        vectors: torch.Tensor = self.user(batch)
        return vectors

    def items(self, batch: ModelBatch) -> torch.Tensor:
        """Return each sample's vector of the item."""
        vectors: torch.Tensor = self.item(batch)
        return vectors


build = TwoTowers
