"""The finalizer of splitmix64, an invertible mix of 64 bits, for numpy arrays and for kernels.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. This module does not import numba, so
that readers of data can use it without.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Values = TypeVar("Values", np.uint64, NDArray[np.uint64])


def mix64(x: Values) -> Values:
    """Return 64-bit values mixed one to one."""
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))
