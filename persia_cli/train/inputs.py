"""What reaches a rank for one step, and the layout by which it is read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.model.inputs import FeatureShape, InputShape
from persia_cli.store.layout import EmbeddingLayout, Storage


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A feature group: rows of `dim` columns, and its features in the order their ids lie in."""

    dim: int
    features: tuple[FeatureShape, ...]
    wire: Storage = "float32"
    """How its rows travel."""
    rounds: tuple[int, ...] = ()
    """Rows whose sum an id of each feature stands for; empty: an id is one row, whatever the feature."""


@dataclass(frozen=True, slots=True)
class Samples:
    """A rank's n samples: dense float32 [n, D], labels float32 [n, T] in 0..1, weights float32 [n] or None for ones.

    `weight_total` is the sum of weights over the global batch, all ranks together. `groups` uint64 [n] or None says
    which samples are judged together.
    """

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    weight_total: float
    groups: NDArray[np.uint64] | None = None


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of one feature group: `rows` uint8 [U_s, bytes of a row] of each server, in order the U unique rows.

    `inverse` int32 gives the unique row of each entry of the group, feature-major, `rounds` entries being an id;
    `offsets` uint32 [F * n + 1] says which entries are of feature f and sample s (its f * n + s), None where every
    feature has one entry per sample.
    """

    rows: Sequence[NDArray[np.uint8]]
    inverse: NDArray[np.int32]
    offsets: NDArray[np.uint32] | None


def group_shapes(layout: EmbeddingLayout) -> tuple[GroupShape, ...]:
    """Return the shape of each feature group of a layout, by group number."""
    features = _features(layout)
    rounds = {table.number: table.rounds or 1 for table in layout.tables()}
    shapes = []
    for group in layout.feature_groups:
        own = layout.features_of(group.number)
        per_id = tuple(rounds[layout.features[feature].table] for feature in own)
        stacks = per_id if max(per_id, default=1) > 1 else ()
        shapes.append(GroupShape(group.dim, tuple(features[feature] for feature in own), group.wire, stacks))
    return tuple(shapes)


def input_shape(layout: EmbeddingLayout, dense: int, tasks: int) -> InputShape:
    """Return what a network is built for: the layout's features beside `dense` numbers, and `tasks` logits."""
    return InputShape(dense, _features(layout), tasks)


def _features(layout: EmbeddingLayout) -> tuple[FeatureShape, ...]:
    dims = {group.number: group.dim for group in layout.groups}
    return tuple(
        FeatureShape(spec.name, dims[spec.group], spec.pooling, spec.max_length, spec.table) for spec in layout.features
    )
