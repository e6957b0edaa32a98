"""Bags of a feature group: which rows a sample's entries name, their sum, and its gradient back to them.

Rows are addressed as an embedding worker numbers them: `inverse[i]` is the unique row of the i-th entry of a feature
group, feature-major. `offsets` is the CSR of that order, or None when every feature has one entry per sample. An id is
`rounds` consecutive entries (1, or the rounds of a hash stack) and stands for the sum of their rows.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from persia_cli.kernels.compile import kernel, read
from persia_cli.kernels.intrinsics import prefetch
from persia_cli.kernels.simd import LANES, load, splat, store

I32, U32, I64 = types.int32, types.uint32, types.int64
AHEAD = np.uint64(16)
"""Entries whose rows are asked for ahead of being read."""
ONE = np.uint64(1)
SECOND, THIRD, FOURTH = (np.uint64(number * LANES) for number in (1, 2, 3))
"""Columns where the vectors of a row behind its first begin."""

_NO_OFFSETS = np.empty(0, np.uint32)


def flat(result: NDArray[Any]) -> NDArray[Any]:
    """Return an array to write to as one dimension of the same memory; raises ValueError if that cannot be."""
    require(result.flags.c_contiguous, "a result would be written to a copy: it must be C-contiguous")
    return result.reshape(-1)


def require(fits: bool, sentence: str) -> None:
    """Raise ValueError of the sentence unless something fits."""
    if not fits:
        raise ValueError(sentence)


def check_bags(
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    bags: int,
    rows: int,
    rounds: NDArray[np.int64],
) -> None:
    """Raise ValueError for indexes that would lead outside the rows, and for bags that are not whole ids.

    inverse int32[entries], offsets uint32[bags + 1] or None, rounds int64[features].
    """
    if offsets is None:
        require(inverse.size == bags, "one entry per sample needs as many inverse entries as features x samples")
        require(bool((rounds == 1).all()), "one entry per sample is no whole id of a hash stack")
    else:
        require(offsets.size == bags + 1, "offsets has not features x samples + 1 entries")
    bounds = _NO_OFFSETS if offsets is None else offsets
    require(bool((rounds > 0).all()), "rounds must be at least 1")
    require(_within(inverse, bounds, rounds, rows), "inverse or offsets point outside the rows, or within an id")


def sequence_offsets(
    inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, size: int, rows: int, rounds: int
) -> NDArray[np.uint32]:
    """Return the n+1 offsets of one feature's samples, given or counted; raises ValueError as `check_bags` does."""
    check_bags(inverse, offsets, size, rows, np.array([rounds], np.int64))
    return np.arange(size + 1, dtype=np.uint32) if offsets is None else offsets


@kernel(types.boolean(read(I32), read(U32), read(I64), I64))
def _within(inverse, offsets, rounds, rows):
    bad = False
    limit = np.uint32(min(rows, np.int64(2**31)))
    for i in range(np.uint64(inverse.size)):
        bad |= np.uint32(inverse[i]) >= limit
    if offsets.size == 0:
        return not bad
    for i in range(np.uint64(offsets.size - 1)):
        bad |= offsets[i + ONE] < offsets[i]
    bad |= offsets[offsets.size - 1] > inverse.size
    size = (offsets.size - 1) // max(rounds.size, 1)
    for feature in range(rounds.size):
        if rounds[feature] > 1:
            for sample in range(size):
                start, stop = bag_of(offsets, feature, size, sample)
                bad |= (stop - start) % np.uint64(rounds[feature]) != 0
    return not bad


@njit(inline="always")
def bag_of(offsets, feature, size, sample):
    """The entries [start, stop) of a feature of a sample."""
    bag = np.uint64(feature * size + sample)
    return np.uint64(offsets[bag]), np.uint64(offsets[bag + ONE])


def _block_of(vectors):
    """Make a function that sums some columns of a bag's rows, `vectors` of sixteen, in registers."""

    @njit(inline="always")
    def write_block(rows, inverse, start, stop, width, column, lanes, values, to):
        one = two = three = four = splat(np.float32(0))
        for i in range(start, stop):
            if i + AHEAD < np.uint64(inverse.size):
                later = np.uint64(inverse[i + AHEAD]) * width + column
                prefetch(rows, later)
                if vectors > 1:
                    prefetch(rows, later + SECOND)
                if vectors > 2:
                    prefetch(rows, later + THIRD)
                    prefetch(rows, later + FOURTH)
            row = np.uint64(inverse[i]) * width + column
            one = one + load(rows, row, lanes)
            if vectors > 1:
                two = two + load(rows, row + SECOND, lanes - 16)
            if vectors > 2:
                three = three + load(rows, row + THIRD, lanes - 32)
                four = four + load(rows, row + FOURTH, lanes - 48)
        store(values, to, one, lanes)
        if vectors > 1:
            store(values, to + SECOND, two, lanes - 16)
        if vectors > 2:
            store(values, to + THIRD, three, lanes - 32)
            store(values, to + FOURTH, four, lanes - 48)

    return write_block


_write_16, _write_32, _write_64 = _block_of(1), _block_of(2), _block_of(4)


@njit(inline="always")
def write_sum(rows, inverse, start, stop, dim, values, to):
    """Write the sum of the rows of entries [start, stop), added in their order, to values[to : to + dim]."""
    width = np.uint64(dim)
    for c in range(0, dim, 64):
        column, lanes = np.uint64(c), dim - c
        if lanes <= 16:
            _write_16(rows, inverse, start, stop, width, column, lanes, values, to + column)
        elif lanes <= 32:
            _write_32(rows, inverse, start, stop, width, column, lanes, values, to + column)
        else:
            _write_64(rows, inverse, start, stop, width, column, lanes, values, to + column)


@njit(inline="always")
def add_to_rows(values, at, inverse, start, stop, dim, rows):
    """Add values[at : at + dim] to the rows of entries [start, stop)."""
    width = np.uint64(dim)
    for i in range(start, stop):
        if i + AHEAD < np.uint64(inverse.size):
            later = np.uint64(inverse[i + AHEAD]) * width
            for c in range(0, dim, LANES):
                prefetch(rows, later + np.uint64(c))
        row = np.uint64(inverse[i]) * width
        for c in range(0, dim, LANES):
            column = np.uint64(c)
            added = load(rows, row + column, dim - c) + load(values, at + column, dim - c)
            store(rows, row + column, added, dim - c)
