"""Ids for measurements: uniform, or as skewed as those of real advertising data."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels import hashing

CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical columns of the Criteo challenge."""
SKEW = 1.05
SALT = 0x5BD1E995_9E3779B9
"""Salt of the keys in measurements of a single table."""

Ids = NDArray[np.int64]
Keys = NDArray[np.uint64]


def zipf(rng: np.random.Generator, values: int, size: int) -> Ids:
    """Return int64[size] ids below `values`, id k with a frequency proportional to (k + 1) ** -1.05."""
    if values < 3:
        return rng.integers(0, values, size)
    power = 1.0 - SKEW
    drawn: NDArray[np.float64] = ((float(values) ** power - 1.0) * rng.random(size) + 1.0) ** (1.0 / power) - 1.0
    return np.minimum(drawn.astype(np.int64), values - 1)


def batch(rng: np.random.Generator, cardinalities: Sequence[int], samples: int, skewed: bool) -> Ids:
    """Return int64[features, samples] ids of a batch with one id per feature and sample."""
    return np.stack([zipf(rng, each, samples) if skewed else rng.integers(0, each, samples) for each in cardinalities])


def distinct(rng: np.random.Generator, values: int, size: int, skewed: bool) -> Ids:
    """Return int64 distinct ids below `values` in random order: `size` ids, or those among `size` skewed draws."""
    if skewed:
        return rng.permutation(np.unique(zipf(rng, values, size)))
    return rng.choice(values, size, replace=False, shuffle=True) if size * 4 > values else _few(rng, values, size)


def _few(rng: np.random.Generator, values: int, size: int) -> Ids:
    """Return few distinct ids of many, without an array of all of them."""
    found = np.unique(rng.integers(0, values, size + size // 2 + 16))
    return rng.permutation(found)[:size]


def keys_of(ids: Ids, table: int = 0, salt: int = SALT) -> Keys:
    """Return uint64 keys of one table's ids."""
    keys = np.empty(ids.size, np.uint64)
    salts = np.zeros(table + 1, np.uint64)
    salts[table] = salt
    hashing.hash_ids(ids.astype(np.uint64), np.full(ids.size, table, np.uint16), salts, keys)
    return keys
