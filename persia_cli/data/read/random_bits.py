"""Random numbers as pure functions of integers, the same with every version of numpy."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.rows.splitmix import GOLDEN, mix64

_MASK = 2**64 - 1
_FIELD = np.uint64(0xFFFF)
_NORMAL_SCALE = 3.0**0.5 / 65536.0


def salt(*parts: int) -> np.uint64:
    """Return one 64-bit key for a tuple of integers, e.g. (seed, epoch, block)."""
    key = 0
    for part in parts:
        state = ((key ^ (part & _MASK)) + int(GOLDEN)) & _MASK
        key = int(mix64(np.array([state], np.uint64))[0])
    return np.uint64(key)


def stream(key: np.uint64 | NDArray[np.uint64], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return random 64-bit values, broadcast over keys and numbers; distinct numbers give distinct values per key."""
    return mix64(numbers * GOLDEN + key)


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random bits to float64 in [0, 1)."""
    values: NDArray[np.float64] = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return values


def normal(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random bits to nearly normal values of mean 0 and variance 1: the sum of four 16-bit uniforms."""
    total = bits & _FIELD
    for shift in (16, 32, 48):
        total += (bits >> np.uint64(shift)) & _FIELD
    return (total.astype(np.float64) - 131070.0) * _NORMAL_SCALE


def permutation(key: np.uint64, size: int) -> NDArray[np.int64]:
    """Return a random order of range(size): the argsort of distinct hashed keys, which does not depend on ties."""
    return np.argsort(stream(key, np.arange(size, dtype=np.uint64)))
