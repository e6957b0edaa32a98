"""Transforms of whole numbers for recipes: to dense values that suit a network, or to categories."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.data.ids import text_ids


def log1p(values: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return log(1 + max(x, 0)), for counts whose order of magnitude matters most."""
    return np.log1p(np.maximum(values, 0).astype(np.float32))


def bucketise(values: NDArray[np.int64], edges: Sequence[float]) -> NDArray[np.int64]:
    """Return the number of ascending edges that each value has reached, 0 to len(edges)."""
    return np.searchsorted(np.asarray(edges), values, side="right").astype(np.int64)


def log_buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(log(x)^2) for x above 2 and x itself elsewhere: fine buckets for small counts, coarse for large.

    (Y. Juan, W.-S. Chin, Y. Zhuang and M. Jahrer, the winners of Criteo's challenge, 2014.)
    """
    return np.where(values > 2, np.floor(np.log(np.maximum(values, 3)) ** 2), values).astype(np.int64)


def number_ids(name: str, values: NDArray[np.int64]) -> pa.Array:
    """Return numbers as categories: the ids of their decimal texts, an Arrow array of uint64."""
    return text_ids(name, pa.array(values).cast(pa.string()))
