"""Statistics of the ids of a column: their number, the most frequent ones, and a sample."""

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.profile.cardinality import Cardinality
from persia_cli.data.profile.tally import BLOCK, Counts, Frequent, Keys, KeySample, Tally
from persia_cli.kernels.hashing import hash_ids, recover_ids

_SALTS = np.array([0x9E3779B97F4A7C15], np.uint64)
"""The seed of keys, the same for every column, so that ids of two columns can be compared."""


class IdSketch:
    """Statistics of ids in about half a megabyte, for any number of ids."""

    def __init__(self) -> None:
        self.count = 0
        self.cardinality = Cardinality()
        self.frequent = Frequent()
        self.sample = KeySample()

    def add(self, ids: NDArray[np.uint64], tally: Tally, counts: Counts | None = None) -> None:
        """Add ids, each once; or distinct ids, each as often as `counts` says."""
        for start in range(0, ids.size, BLOCK):
            part = slice(start, start + BLOCK)
            keys = np.empty(ids[part].size, np.uint64)
            hash_ids(ids[part], np.zeros(keys.size, np.uint16), _SALTS, keys)
            self._add_keys(*tally(keys, None if counts is None else counts[part]), tally)

    def _add_keys(self, keys: Keys, counts: Counts, tally: Tally) -> None:
        self.count += int(counts.sum())
        self.cardinality.add(keys)
        self.frequent.add(keys, counts, tally)
        self.sample.add(keys, counts, tally)

    def top(self, number: int) -> dict[int, int]:
        """Return the most frequent ids and their numbers of occurrences, most frequent first."""
        keys, counts = self.frequent.top(number)
        return dict(zip(ids_of(keys).tolist(), counts.tolist(), strict=True))

    @property
    def distinct(self) -> int:
        """Number of distinct ids: counted if they are few, else estimated."""
        return self.frequent.keys.size if self.is_exact else self.cardinality.estimate()

    @property
    def is_exact(self) -> bool:
        """True if all statistics are counted, not estimated."""
        return self.frequent.short == 0


def joined(one: IdSketch, other: IdSketch, tally: Tally) -> IdSketch:
    """Return the statistics of the ids of both together, with an empty sample."""
    both = IdSketch()
    both.count = one.count + other.count
    both.cardinality = one.cardinality.joined(other.cardinality)
    for part in (one.frequent, other.frequent):
        both.frequent.add(part.keys, part.counts, tally)
        both.frequent.short += part.short
    return both


def ids_of(keys: Keys) -> NDArray[np.uint64]:
    """Return the ids that the keys were made from."""
    ids = np.empty(keys.size, np.uint64)
    recover_ids(keys, np.zeros(keys.size, np.uint16), _SALTS, ids)
    return ids
