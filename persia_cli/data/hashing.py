"""Random numbers as pure functions of integers, the same under every numpy."""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_FIELD = np.uint64(0xFFFF)
_NORMAL_SCALE = 3.0**0.5 / 65536.0


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64-bit values one to one: the finalizer of splitmix64 (Steele, Lea, Flood 2014)."""
    x = values ^ (values >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def salt(*parts: int) -> np.uint64:
    """Return one 64-bit key for a tuple of integers, e.g. (seed, epoch, block)."""
    key = 0
    for part in parts:
        state = ((key ^ (part & _MASK)) + _GOLDEN) & _MASK
        key = int(mix64(np.array([state], np.uint64))[0])
    return np.uint64(key)


def stream(key: np.uint64 | NDArray[np.uint64], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return random 64-bit values, broadcast over keys and numbers; under one key distinct numbers differ."""
    return mix64(numbers * np.uint64(_GOLDEN) + key)


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn random bits into float64 in [0, 1)."""
    values: NDArray[np.float64] = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return values


def normal(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn random bits into nearly normal values of mean 0 and variance 1: the sum of four 16-bit uniforms."""
    total = bits & _FIELD
    for shift in (16, 32, 48):
        total += (bits >> np.uint64(shift)) & _FIELD
    return (total.astype(np.float64) - 131070.0) * _NORMAL_SCALE


def permutation(key: np.uint64, size: int) -> NDArray[np.int64]:
    """Return a random order of range(size): the argsort of distinct hashed keys, so no sort can break ties its way."""
    return np.argsort(stream(key, np.arange(size, dtype=np.uint64)))
