"""Counts of a stream's keys in bounded memory: the most frequent ones, and a sample of all."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.dedup import number_keys

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]

BLOCK = 1 << 18
"""Most keys that are counted in one call."""
FREQUENT = 1024
"""Number of keys that `Frequent` keeps."""
SAMPLE = 1 << 14
"""Most keys that `KeySample` keeps; it keeps at least half as many if the stream had them."""

_SAMPLE_SHIFT = np.uint64(24)  # not the bits that select a register or a slot


class Tally:
    """Sums per distinct key; keys must look random, since their low bits select the slot they are counted in."""

    def __init__(self) -> None:
        most = BLOCK + max(FREQUENT, SAMPLE)
        self._scratch = np.zeros(1 << (2 * most - 1).bit_length(), np.uint64)
        self._epoch = 0
        self._tables = np.zeros(most, np.uint16)
        self._keys, self._same = np.empty(most, np.uint64), np.empty(most, np.uint16)
        self._inverse = np.empty(most, np.int32)

    def __call__(self, keys: Keys, counts: Counts | None = None) -> tuple[Keys, Counts]:
        """Return the distinct keys and the sum of each one's counts; without `counts`, each key counts 1."""
        self._epoch += 1
        tables, inverse = self._tables[: keys.size], self._inverse[: keys.size]
        found = number_keys(keys, tables, self._scratch, self._epoch, self._keys, self._same, inverse)
        sums = np.bincount(inverse, counts, minlength=found).astype(np.int64)
        return self._keys[:found].copy(), sums


class Frequent:
    """The most frequent keys of a stream (Misra and Gries, "Finding repeated elements", 1982).

    Counts may be too low by at most `short`, which is at most one in FREQUENT + 1 of all occurrences; if `short` is 0
    they are exact, and there are no other keys.
    """

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Counts = np.empty(0, np.int64)
        self.short = 0

    def add(self, keys: Keys, counts: Counts, tally: Tally) -> None:
        """Add distinct keys with their counts."""
        keys, counts = tally(np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts]))
        if keys.size > FREQUENT:
            cut = int(np.partition(counts, keys.size - FREQUENT - 1)[keys.size - FREQUENT - 1])
            kept = counts > cut
            keys, counts = keys[kept], counts[kept] - cut
            self.short += cut
        self.keys, self.counts = keys, counts

    def top(self, number: int) -> tuple[Keys, Counts]:
        """Return the most frequent keys, most frequent first; keys with equal counts in ascending order."""
        order = np.lexsort((self.keys, -self.counts))[:number]
        return self.keys[order], self.counts[order]


class KeySample:
    """A random sample of a stream's keys, with their counts.

    The selection depends only on bits of the key: samples of two streams, taken at the same level, agree on the keys
    that they hold. At level n one key of 2^n is selected; the level rises with the number of keys (Gibbons, "Distinct
    sampling", 2001).
    """

    def __init__(self) -> None:
        self.level = 0
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Counts = np.empty(0, np.int64)

    def add(self, keys: Keys, counts: Counts, tally: Tally) -> None:
        """Add distinct keys with their counts."""
        picked = _picked(keys, self.level)
        self.keys, self.counts = tally(
            np.concatenate([self.keys, keys[picked]]), np.concatenate([self.counts, counts[picked]])
        )
        while self.keys.size > SAMPLE:
            self.level += 1
            self.keys, self.counts = self.at(self.level)

    def at(self, level: int) -> tuple[Keys, Counts]:
        """Return the keys selected at a level, which is no lower than the sample's, and their counts."""
        picked = _picked(self.keys, level)
        return self.keys[picked], self.counts[picked]


def _picked(keys: Keys, level: int) -> NDArray[np.bool_]:
    mask = np.uint64((1 << level) - 1)
    picked: NDArray[np.bool_] = (keys >> _SAMPLE_SHIFT) & mask == 0
    return picked
