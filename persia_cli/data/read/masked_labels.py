"""Labels that are not known: NaN in the arrays of a batch, and without weight in losses and metrics."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = np.ndarray[Any, Any]


def without_unknown(labels: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Return labels [n, T] with 0 in place of NaN, and weights [n, T] that are 0 there.

    `weights` are [n], or None for ones. Both are returned unchanged if all labels are known.
    """
    if not np.isnan(labels.max(initial=0.0)):  # one pass: each releases the GIL, and then waits for it
        return labels, weights
    unknown = np.isnan(labels)
    ones = np.ones((len(labels), 1), np.float32) if weights is None else weights[:, None]
    return np.where(unknown, labels.dtype.type(0.0), labels), np.where(unknown, ones.dtype.type(0.0), ones)


def weight_totals(labels: NDArray[np.float32], weights: NDArray[np.float32] | None) -> NDArray[np.float64]:
    """Return float64 [T], the sum of the weights of the samples whose label is known, for each label of [n, T]."""
    unknown = np.isnan(labels)
    weight = np.ones(len(labels), np.float32) if weights is None else weights
    if not unknown.any():
        # One sum of contiguous numbers for all: its rounding does not depend on the number of labels.
        return np.full(labels.shape[1], weight.sum(dtype=np.float64))
    return np.array([weight[~column].sum(dtype=np.float64) for column in unknown.T])


def fill_chain(labels: NDArray[np.float32]) -> None:
    """Set each unknown label of a chain to 0, in place, where the label before it is 0.

    In a chain, such as click and conversion, each label is a part of the one before it. `labels` are [n, T].
    """
    for task in range(1, labels.shape[1]):
        implied = np.isnan(labels[:, task]) & (labels[:, task - 1] == 0.0)
        labels[implied, task] = 0.0
