"""Statistics of numbers: range, mean and a sample; and of the lengths of lists."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

QUANTILES = (0.01, 0.5, 0.99)


@dataclass(frozen=True, slots=True)
class NumberFigures:
    """Statistics of the finite numbers of a column; all None if there are none."""

    least: float | None
    greatest: float | None
    mean: float | None
    quantiles: tuple[float, ...]
    """Values at QUANTILES, from a sample of the rows."""
    not_finite: int
    is_binary: bool
    """True if 0 and 1 both occur, and no other number."""


class NumberSketch:
    """Statistics of numbers in bounded memory: the caller picks a sample of limited size."""

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.total = 0.0
        self.least, self.greatest = math.inf, -math.inf
        self.only_binary = True
        self._sample: list[Floats] = []

    def add(self, values: Floats, picked: NDArray[np.bool_], nulls: int) -> None:
        """Add values, with NaN for each of `nulls` nulls; those that are True in `picked` are sampled."""
        finite = np.isfinite(values)
        whole = bool(finite.all())
        numbers = values if whole else values[finite]
        self.not_finite += values.size - numbers.size - nulls
        if numbers.size:
            self.count += numbers.size
            self.total += float(numbers.sum())
            self.least = min(self.least, float(numbers.min()))
            self.greatest = max(self.greatest, float(numbers.max()))
            self.only_binary = self.only_binary and bool(((numbers == 0.0) | (numbers == 1.0)).all())
        self._sample.append(values[picked] if whole else values[picked & finite])

    @property
    def sample(self) -> Floats:
        """The finite numbers of the sampled rows."""
        return np.concatenate(self._sample) if self._sample else np.empty(0)

    def joined(self, other: "NumberSketch") -> "NumberSketch":
        """Return the statistics of the numbers of both together."""
        both = NumberSketch()
        both.count = self.count + other.count
        both.not_finite = self.not_finite + other.not_finite
        both.total = self.total + other.total
        both.least, both.greatest = min(self.least, other.least), max(self.greatest, other.greatest)
        both.only_binary = self.only_binary and other.only_binary
        both._sample = [self.sample, other.sample]
        return both

    def figures(self) -> NumberFigures:
        """Return the statistics."""
        if not self.count:
            return NumberFigures(None, None, None, (), self.not_finite, False)
        sample = self.sample
        quantiles = tuple(map(float, np.quantile(sample, QUANTILES))) if sample.size else ()
        is_binary = self.only_binary and self.least < self.greatest
        return NumberFigures(self.least, self.greatest, self.total / self.count, quantiles, self.not_finite, is_binary)


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Statistics of the lengths of lists."""

    least: int
    greatest: int
    mean: float
    counts: tuple[int, ...]
    """Number of lists of length 0, 1, 2 to 3, 4 to 7, and so on, doubling."""

    def covering(self, share: float) -> int:
        """Return a length that this fraction of the lists does not exceed: a power of two less 1, or the greatest."""
        wanted, seen = share * sum(self.counts), 0
        for number, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return min(self.greatest, (1 << number) - 1)
        return self.greatest


class LengthSketch:
    """Lengths of lists, in a histogram of doubling bins."""

    def __init__(self) -> None:
        self.counts = np.zeros(64, np.int64)
        self.total = 0
        self.least: int | None = None
        self.greatest = 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Add lengths."""
        if lengths.size:
            self.counts += np.bincount(np.frexp(lengths)[1], minlength=64)
            self.total += int(lengths.sum())
            least = int(lengths.min())
            self.least = least if self.least is None else min(self.least, least)
            self.greatest = max(self.greatest, int(lengths.max()))

    def joined(self, other: "LengthSketch") -> "LengthSketch":
        """Return the statistics of the lengths of both together."""
        both = LengthSketch()
        both.counts = self.counts + other.counts
        both.total = self.total + other.total
        both.least = min((each.least for each in (self, other) if each.least is not None), default=None)
        both.greatest = max(self.greatest, other.greatest)
        return both

    def figures(self) -> LengthFigures | None:
        """Return the statistics; None if there was no list."""
        lists = int(self.counts.sum())
        if not lists or self.least is None:
            return None
        last = int(np.flatnonzero(self.counts)[-1])
        return LengthFigures(self.least, self.greatest, self.total / lists, tuple(self.counts[: last + 1].tolist()))
