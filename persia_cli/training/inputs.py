"""The input of a rank for one step, and its layout."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from persia_cli.model.shape import FeatureShape
from persia_cli.plan.network import feature_shapes
from persia_cli.store.layout import EmbeddingLayout, Wire


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The shape of a feature group: rows of `dim` columns, and its features in the order of their ids."""

    dim: int
    features: tuple[FeatureShape, ...]
    wire: Wire = "float32"
    """Dtype of its rows on the wire."""
    rounds: tuple[int, ...] = ()
    """Number of rows per id of each feature, whose sum is the id's embedding; empty if all ids have one row."""
    is_frozen: bool = False
    """True if its rows get no gradients."""


@dataclass(frozen=True, slots=True)
class Samples:
    """A rank's n samples: dense float32 [n, D], labels float32 [n, T], weights float32 [n] or None for ones.

    An unknown label is NaN. `weight_totals` [T] has, for each label, the sum of the weights of the samples of
    the global batch, of all ranks, whose label is known. `query_ids` uint64 [n] or None are the
    queries within which metrics and losses rank samples, `item_keys` uint64 [n] or None identify their items.
    """

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    weight_totals: Sequence[float]
    query_ids: NDArray[np.uint64] | None = None
    item_keys: NDArray[np.uint64] | None = None

    @property
    def counted(self) -> "Samples":
        """The same for the metrics of training, which rank no samples within queries."""
        return replace(self, query_ids=None, item_keys=None)


def group_shapes(layout: EmbeddingLayout) -> tuple[GroupShape, ...]:
    """Return the shape of each feature group of a layout, by group number."""
    features = feature_shapes(layout)
    rounds = {table.number: table.rounds or 1 for table in layout.tables()}
    shapes = []
    for group in layout.feature_groups:
        own = layout.features_of(group.number)
        per_id = tuple(rounds[layout.features[feature].table] for feature in own)
        stacks = per_id if max(per_id, default=1) > 1 else ()
        read = tuple(features[feature] for feature in own)
        shapes.append(GroupShape(group.dim, read, group.wire, stacks, group.is_frozen))
    return tuple(shapes)
