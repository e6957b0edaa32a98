"""Bags of a feature group: the rows of a sample's entries, their sum, and the gradient back to them.

Rows are addressed by the embedding worker's numbers: `inverse[i]` is the unique row of the i-th entry of a feature
group, feature-major. `offsets` is the CSR of that order, or None when every feature has one entry per sample. An id is
`rounds` consecutive entries (1, or the rounds of a hash stack) and stands for the sum of their rows.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.toolchain.compile import inlined, kernel, read
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.needs import POOLING
from persia_cli.kernels.toolchain.simd import LANES, load, splat, store

I32, U32, I64 = types.int32, types.uint32, types.int64
AHEAD = np.uint64(8)
"""Number of entries between the row that is read and the row that is prefetched."""
FAR = np.uint64(32)
"""Smallest dim for which prefetching pays: the hardware prefetches narrower rows well enough."""
ZERO, ONE, STEP, WHOLE = np.uint64(0), np.uint64(1), np.uint64(LANES), np.int64(LANES)
SECOND, THIRD, FOURTH, FOUR = (np.uint64(number * LANES) for number in (1, 2, 3, 4))
"""First columns of the second, third and fourth vector of a row, and the columns of four vectors."""

_NO_OFFSETS = np.empty(0, np.uint32)


def flat(result: NDArray[Any]) -> NDArray[Any]:
    """Return a flat view of an array for writing; raise ValueError if it is not C-contiguous."""
    require(result.flags.c_contiguous, "the array for the result must be C-contiguous")
    return result.reshape(-1)


def require(fits: bool, sentence: str) -> None:
    """Raise ValueError with the sentence unless `fits`."""
    if not fits:
        raise ValueError(sentence)


def check_bags(
    inverse: NDArray[np.int32],
    offsets: NDArray[np.uint32] | None,
    bags: int,
    rows: int,
    rounds: NDArray[np.int64],
) -> None:
    """Raise ValueError if an index lies outside the rows, or if a bag ends within an id.

    inverse int32[entries], offsets uint32[bags + 1] or None, rounds int64[features].
    """
    if offsets is None:
        require(inverse.size == bags, "without offsets, inverse must have one entry per feature and sample")
        require(
            bool((rounds == 1).all()), "without offsets, rounds must be 1: an id of a hash stack has several entries"
        )
    else:
        require(offsets.size == bags + 1, "offsets must have features x samples + 1 entries")
    bounds = _NO_OFFSETS if offsets is None else offsets
    require(bool((rounds > 0).all()), "rounds must be at least 1")
    require(
        _within(inverse, bounds, rounds, rows), "inverse or offsets point outside the rows, or a bag ends within an id"
    )


def sequence_offsets(
    inverse: NDArray[np.int32], offsets: NDArray[np.uint32] | None, size: int, rows: int, rounds: int
) -> NDArray[np.uint32]:
    """Return the n+1 offsets of one feature's samples, 0, 1, 2, … for None; raise ValueError as `check_bags` does."""
    check_bags(inverse, offsets, size, rows, np.array([rounds], np.int64))
    return np.arange(size + 1, dtype=np.uint32) if offsets is None else offsets


@kernel(types.boolean(read(I32), read(U32), read(I64), I64), for_=POOLING)
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


@inlined
def bag_of(offsets, feature, size, sample):
    """Return the entries [start, stop) of a feature of a sample."""
    bag = np.uint64(feature * size + sample)
    return np.uint64(offsets[bag]), np.uint64(offsets[bag + ONE])


@inlined
def _write_block(vectors, last, rows, inverse, start, stop, dim, column, values, to):
    """Write the sum of up to four vectors of a bag's rows, added in registers; the last vector has `last` lanes."""
    one = two = three = four = splat(np.float32(0))
    # `vectors` is a constant at each call, so each of the four callers gets code without these branches.
    for i in range(start, stop):
        if vectors > 1 and i + AHEAD < np.uint64(inverse.size):
            later = np.uint64(inverse[i + AHEAD]) * dim + column
            prefetch(rows, later)
            prefetch(rows, later + SECOND)
            if vectors > 2:
                prefetch(rows, later + THIRD)
                prefetch(rows, later + FOURTH)
        row = np.uint64(inverse[i]) * dim + column
        one = one + load(rows, row, last if vectors == 1 else WHOLE)
        if vectors > 1:
            two = two + load(rows, row + SECOND, last if vectors == 2 else WHOLE)
        if vectors > 2:
            three = three + load(rows, row + THIRD, last if vectors == 3 else WHOLE)
        if vectors > 3:
            four = four + load(rows, row + FOURTH, last)
    store(values, to, one, last if vectors == 1 else WHOLE)
    if vectors > 1:
        store(values, to + SECOND, two, last if vectors == 2 else WHOLE)
    if vectors > 2:
        store(values, to + THIRD, three, last if vectors == 3 else WHOLE)
    if vectors > 3:
        store(values, to + FOURTH, four, last)


@inlined
def write_sum(rows, inverse, start, stop, dim, values, to):
    """Write the sum of the rows of entries [start, stop), added in their order, to values[to : to + dim]."""
    for column in range(ZERO, dim, FOUR):
        at, left = to + column, dim - column
        if left > FOURTH:
            _write_block(4, np.int64(left - FOURTH), rows, inverse, start, stop, dim, column, values, at)
        elif left > THIRD:
            _write_block(3, np.int64(left - THIRD), rows, inverse, start, stop, dim, column, values, at)
        elif left > SECOND:
            _write_block(2, np.int64(left - SECOND), rows, inverse, start, stop, dim, column, values, at)
        else:
            _write_block(1, np.int64(left), rows, inverse, start, stop, dim, column, values, at)


@inlined
def add_to_rows(values, at, inverse, start, stop, dim, rows):
    """Add values[at : at + dim] to the rows of entries [start, stop)."""
    for i in range(start, stop):
        if i + AHEAD < np.uint64(inverse.size):
            for c in range(ZERO, dim, STEP):
                prefetch(rows, np.uint64(inverse[i + AHEAD]) * dim + c)
        row = np.uint64(inverse[i]) * dim
        for c in range(ZERO, dim, STEP):
            lanes = np.int64(dim - c)
            store(rows, row + c, load(rows, row + c, lanes) + load(values, at + c, lanes), lanes)
