"""The weights of positions of sequences in a loss of next elements: a loader adds up those that NN workers apply."""

import numpy as np
from numpy.typing import NDArray


def position_weights(
    bounds: NDArray[np.int64], labels: NDArray[np.float32], weights: NDArray[np.float32] | None, newest: int
) -> NDArray[np.float32]:
    """Return the weight of each element of all sequences as a position that predicts the next one, float32 [E].

    Sample i of n has the elements from bounds[i] to bounds[i + 1]. Its last one predicts the sample's item, and weighs
    as the sample times its label; the others of its `newest` ones weigh as the sample. A sample whose label is not
    known (NaN) weighs nothing. `labels` are float32 [n]; `weights` float32 [n], or None for ones.
    """
    lengths = np.diff(bounds)
    known = ~np.isnan(labels)
    of_samples = known.astype(np.float32) if weights is None else np.where(known, weights, np.float32(0.0))
    ages = np.repeat(bounds[1:], lengths) - 1 - np.arange(bounds[-1])
    positions = np.where(ages < newest, np.repeat(of_samples, lengths), np.float32(0.0))
    has_some = lengths > 0
    positions[bounds[1:][has_some] - 1] = (of_samples * np.where(known, labels, np.float32(0.0)))[has_some]
    return positions
