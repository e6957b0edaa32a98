"""Which keys a stream had and how often: the most frequent ones, and a sample of all, in bounded memory."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.dedup import number_keys

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]

BLOCK = 1 << 18
"""Most keys that are counted at once."""
FREQUENT = 1024
"""Keys that `Frequent` keeps."""
SAMPLE = 1 << 14
"""Keys that `KeySample` keeps at most, and at least half as many if there were so many."""

_SAMPLE_SHIFT = np.uint64(24)  # other bits than those that pick a register or a slot


class Tally:
    """Sums per distinct key; keys must look random, for their low bits say where they are counted."""

    def __init__(self) -> None:
        most = BLOCK + max(FREQUENT, SAMPLE)
        self._scratch = np.zeros(1 << (2 * most - 1).bit_length(), np.uint64)
        self._epoch = 0
        self._tables = np.zeros(most, np.uint16)
        self._keys, self._same = np.empty(most, np.uint64), np.empty(most, np.uint16)
        self._inverse = np.empty(most, np.int32)

    def __call__(self, keys: Keys, counts: Counts | None = None) -> tuple[Keys, Counts]:
        """Return the distinct keys and the sum of each one's counts, 1 each if there are none given."""
        self._epoch += 1
        tables, inverse = self._tables[: keys.size], self._inverse[: keys.size]
        found = number_keys(keys, tables, self._scratch, self._epoch, self._keys, self._same, inverse)
        sums = np.bincount(inverse, counts, minlength=found).astype(np.int64)
        return self._keys[:found].copy(), sums


class Frequent:
    """The most frequent keys of a stream (Misra and Gries, "Finding repeated elements", 1982).

    Counts may be too low, by at most `short`, and that is at most one in FREQUENT + 1 of all there were; where `short`
    is 0 they are exact, and there are no other keys.
    """

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Counts = np.empty(0, np.int64)
        self.short = 0

    def add(self, keys: Keys, counts: Counts, tally: Tally) -> None:
        """Take distinct keys in, each as often as counted."""
        keys, counts = tally(np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts]))
        if keys.size > FREQUENT:
            cut = int(np.partition(counts, keys.size - FREQUENT - 1)[keys.size - FREQUENT - 1])
            kept = counts > cut
            keys, counts = keys[kept], counts[kept] - cut
            self.short += cut
        self.keys, self.counts = keys, counts

    def top(self, number: int) -> tuple[Keys, Counts]:
        """Return the most frequent keys, most frequent first; of equals the lesser key."""
        order = np.lexsort((self.keys, -self.counts))[:number]
        return self.keys[order], self.counts[order]


class KeySample:
    """All keys of a stream that chance has picked, with their counts.

    Chance is a part of the key itself: samples of two streams, taken at one level, agree on which keys they hold. At
    level n one key of 2^n is picked; the level rises as keys come (Gibbons, "Distinct sampling", 2001).
    """

    def __init__(self) -> None:
        self.level = 0
        self.keys: Keys = np.empty(0, np.uint64)
        self.counts: Counts = np.empty(0, np.int64)

    def add(self, keys: Keys, counts: Counts, tally: Tally) -> None:
        """Take distinct keys in, each as often as counted."""
        picked = _picked(keys, self.level)
        self.keys, self.counts = tally(
            np.concatenate([self.keys, keys[picked]]), np.concatenate([self.counts, counts[picked]])
        )
        while self.keys.size > SAMPLE:
            self.level += 1
            self.keys, self.counts = self.at(self.level)

    def at(self, level: int) -> tuple[Keys, Counts]:
        """Return the keys that are picked at a level no lower than the sample's, and their counts."""
        picked = _picked(self.keys, level)
        return self.keys[picked], self.counts[picked]


def _picked(keys: Keys, level: int) -> NDArray[np.bool_]:
    mask = np.uint64((1 << level) - 1)
    picked: NDArray[np.bool_] = (keys >> _SAMPLE_SHIFT) & mask == 0
    return picked
