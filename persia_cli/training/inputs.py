"""The input of a rank for one step, its layout, and its parts, which a network computes one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from persia_cli.model.shape import FeatureShape
from persia_cli.plan.columns import feature_shapes
from persia_cli.store.layout import EmbeddingLayout, Wire
from persia_cli.wire.messages import GroupRows


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

    Of a loss of next elements, `weight_totals` is the sum of the weights of positions. `drawn_share` is the
    probability that an item is among the drawn negatives, 0.0 without any; `log_q` float32 or None, for candidates of
    the batch itself, as in `PutSamples`.
    """

    dense: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    weight_totals: Sequence[float]
    query_ids: NDArray[np.uint64] | None = None
    item_keys: NDArray[np.uint64] | None = None
    drawn_share: float = 0.0
    log_q: NDArray[np.float32] | None = None

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
        numbers = layout.features_of(group.number)
        per_id = tuple(rounds[layout.features[feature].table] for feature in numbers)
        stacks = per_id if max(per_id, default=1) > 1 else ()
        read = tuple(features[feature] for feature in numbers)
        shapes.append(GroupShape(group.dim, read, group.wire, stacks, group.is_frozen))
    return tuple(shapes)


@dataclass(frozen=True, slots=True)
class StepParts:
    """The division of a rank's samples into `count` parts, the last one possibly empty, of at most `size` samples."""

    count: int
    size: int

    def cuts(self, samples: int) -> list[slice]:
        """Return the samples of each part, in their order."""
        stops = [min(number * self.size, samples) for number in range(self.count)]
        return [slice(*bounds) for bounds in pairwise([*stops, samples])]

    def filled(self, samples: int) -> list[slice]:
        """Return the cuts that have samples, or one without any if there are none."""
        return [cut for cut in self.cuts(samples) if cut.stop > cut.start] or [slice(0, 0)]


WHOLE = StepParts(1, 0)
"""All samples at once."""


def cut_samples(samples: Samples, cut: slice) -> Samples:
    """Return some of the samples; the weight is still that of the global batch."""
    return replace(
        samples,
        dense=samples.dense[cut],
        labels=samples.labels[cut],
        weights=None if samples.weights is None else samples.weights[cut],
        query_ids=None if samples.query_ids is None else samples.query_ids[cut],
        item_keys=None if samples.item_keys is None else samples.item_keys[cut],
    )


def cut_ids(group: GroupRows, features: int, size: int, cuts: Sequence[slice]) -> list[GroupRows]:
    """Return the ids of each part's samples, which refer to the same rows.

    A group has the ids of `size` samples, feature by feature; raise ValueError otherwise.
    """
    if group.offsets is None:
        if group.inverse.size != features * size:
            raise ValueError(f"expected {features * size} ids, received {group.inverse.size}")
        ids = group.inverse.reshape(features, size)
        return [GroupRows(group.rows, ids[:, cut].ravel(), None) for cut in cuts]
    bounds = group.offsets.astype(np.int64)
    lengths = np.diff(bounds)
    if lengths.size != features * size or bounds[0] or bounds[-1] != group.inverse.size or (lengths < 0).any():
        raise ValueError(f"expected the offsets of {features * size} lists of {group.inverse.size} ids")
    firsts, parts = np.arange(features) * size, []
    for cut in cuts:
        starts, stops = bounds[firsts + cut.start], bounds[firsts + cut.stop]
        pieces = [group.inverse[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        offsets = np.zeros(features * (cut.stop - cut.start) + 1, np.uint32)
        np.cumsum(lengths.reshape(features, size)[:, cut], out=offsets[1:])
        parts.append(GroupRows(group.rows, np.concatenate([group.inverse[:0], *pieces]), offsets))
    return parts


def entries_of(group: GroupRows, feature: int, size: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the entries of one feature of `size` samples, and where those of each begin and end, int64 [size + 1]."""
    if group.offsets is None:
        return group.inverse[feature * size : (feature + 1) * size], np.arange(size + 1)
    bounds = group.offsets[feature * size : (feature + 1) * size + 1].astype(np.int64)
    return group.inverse[bounds[0] : bounds[-1]], bounds - bounds[0]
