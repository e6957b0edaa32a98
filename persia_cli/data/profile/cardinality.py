"""An estimate of a stream's number of distinct keys, within about a percent, from 16 KiB."""

import math

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.registers import raise_registers

BITS = 14
"""Bits of a key that select its register."""
STANDARD_ERROR = 1.04 / math.sqrt(1 << BITS)
"""Relative standard error of an estimate, 0.8 %: one in three is off by more, one in twenty by more than twice that."""

_RUNS = 64 - BITS


class Cardinality:
    """Registers of a stream of keys, which must look random; the registers of two streams can be joined."""

    def __init__(self) -> None:
        self.registers = np.zeros(1 << BITS, np.uint8)

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Add keys; a key that comes again changes nothing."""
        raise_registers(keys, BITS, self.registers)

    def joined(self, other: "Cardinality") -> "Cardinality":
        """Return the registers of one stream with the keys of both."""
        both = Cardinality()
        np.maximum(self.registers, other.registers, out=both.registers)
        return both

    def estimate(self) -> int:
        """Return the estimated number of distinct keys.

        The estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6,
        which needs no correction for small or large numbers.
        """
        size = float(1 << BITS)
        counts = np.bincount(self.registers, minlength=_RUNS + 2)
        total = size * _tau(1.0 - counts[_RUNS + 1] / size)
        for run in range(_RUNS, 0, -1):
            total = 0.5 * (total + float(counts[run]))
        total += size * _sigma(counts[0] / size)
        return round(size * size / (2.0 * math.log(2.0) * total))


def _sigma(x: float) -> float:
    """Return the sum x + x^2 + 2 x^4 + 4 x^8 + ..., x being the part of the registers that are 0; infinite for 1."""
    if x == 1.0:
        return math.inf
    before, total, factor = -1.0, x, 1.0
    while total != before:
        before = total
        x *= x
        total += x * factor
        factor *= 2.0
    return total


def _tau(x: float) -> float:
    """Return the paper's sum for the part of the registers that are full."""
    if x in (0.0, 1.0):
        return 0.0
    before, total, factor = -1.0, 1.0 - x, 1.0
    while total != before:
        before = total
        x = math.sqrt(x)
        factor *= 0.5
        total -= (1.0 - x) ** 2 * factor
    return total / 3.0
