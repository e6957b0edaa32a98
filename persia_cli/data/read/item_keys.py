"""The identity of the items of a batch: one number for all features of an item."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch
from persia_cli.data.read.ids import NULL_ID
from persia_cli.kernels.rows.splitmix import GOLDEN, mix64

Keys = NDArray[np.uint64]


def item_keys(batch: Batch, features: Sequence[int]) -> Keys:
    """Return uint64 [n], equal for samples with the same ids in each of these features, in whatever order.

    Different items have the same key by chance alone, one pair in 2^64.
    """
    n = batch.size
    keys = np.zeros(n, np.uint64)
    for number, feature in enumerate(features):
        bounds = batch.offsets[feature * n : (feature + 1) * n + 1].astype(np.int64)
        mixed = mix64(mix64(batch.ids[bounds[0] : bounds[-1]] + GOLDEN) + np.uint64(number + 1))
        # Sums wrap around; those of a prefix give that of each list, also of an empty one.
        sums = np.zeros(mixed.size + 1, np.uint64)
        np.cumsum(mixed, out=sums[1:])
        ends = bounds - bounds[0]
        keys = mix64((keys ^ mix64(sums[ends[1:]] - sums[ends[:-1]])) + GOLDEN)
    return keys


def has_item(batch: Batch, features: Sequence[int]) -> NDArray[np.bool_]:
    """Return bool [n], True for samples with an id in one of these features that is not null."""
    n = batch.size
    is_there = np.zeros(n, np.bool_)
    for feature in features:
        bounds = batch.offsets[feature * n : (feature + 1) * n + 1].astype(np.int64)
        known = np.cumsum(np.r_[0, batch.ids[bounds[0] : bounds[-1]] != np.uint64(NULL_ID)])
        is_there |= np.diff(known[bounds - bounds[0]]) > 0
    return is_there
