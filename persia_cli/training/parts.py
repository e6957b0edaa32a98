"""The parts of a rank's samples, computed one after another, so that the network's memory holds only one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from persia_cli.training.inputs import Samples
from persia_cli.wire.messages import GroupRows


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
