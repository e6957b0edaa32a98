"""Weights counted by logit in bounded memory: by single float32 values while there are few, else by ranges of them.

Number all float32 values, infinities included, in ascending order. A cell is a range of 2**level consecutive numbers
that starts at a multiple of its size. So two cells are disjoint or one contains the other, and cells of different parts
of the data can be merged without moving a sample. The code of a cell is twice the number of its first value, plus
2**level: codes are ordered as the middles of cells are, and the lowest bit that is set is the level. Cells are narrow
where the data is dense, whatever the scale of the logits.
"""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = np.ndarray[Any, Any]
Codes = NDArray[np.uint64]

TASK_BITS = 33
"""Number of bits of a code; the number of its task is in the bits above."""
LEVELS = 23
"""Level of the widest cell: values of one sign and of one power of two."""
TOP = 1 / 16
"""Weight, in a cell's importance, of its fraction of all that is above it; its fraction of all has weight 1."""
FEW_RUNS = 8
"""Number of sorted runs below which a merge sort is faster."""
LOW = (1 << TASK_BITS) - 1

_NOWHERE = np.uint64(0xFFFFFFFFFFFFFFFF)
_SIGN = np.uint32(0x80000000)
_LEAST, _GREATEST = 0x007FFFFF, 0xFF800000
"""Numbers of both infinities."""


def rising(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the numbers of float32 values in ascending order; both zeros have the same number."""
    bits = (values + np.float32(0.0)).view(np.uint32)
    return bits ^ np.where(bits >= _SIGN, np.uint32(0xFFFFFFFF), _SIGN)


def cells_of(logits: NDArray[np.float32]) -> Codes:
    """Return the single-value cells of logits [n, T] without NaN."""
    tasks = np.arange(logits.shape[1], dtype=np.uint64) << np.uint64(TASK_BITS)
    return (rising(logits).astype(np.uint64) << np.uint64(1)) + (tasks + np.uint64(1))


def middles(codes: Codes) -> NDArray[np.float32]:
    """Return the logit in the middle of each cell; for a single-value cell it is the value."""
    numbers = np.clip((codes & np.uint64(LOW)) >> np.uint64(1), _LEAST, _GREATEST).astype(np.uint32)
    bits: NDArray[np.uint32] = numbers ^ np.where(numbers >= _SIGN, _SIGN, np.uint32(0xFFFFFFFF))
    return bits.view(np.float32)


def are_single(codes: Codes) -> NDArray[np.bool_]:
    """Return True for cells of a single value, whose samples are ties."""
    return (codes & np.uint64(1)).astype(np.bool_)


def are_cells(codes: Codes, tasks: int) -> bool:
    """Return True if these ascending codes are all valid cells of so many tasks."""
    if not len(codes):
        return True
    widths = codes & -codes
    return int(codes[0]) > 0 and int(codes[-1]) >> TASK_BITS < tasks and int(widths.max()) <= 1 << LEVELS


def gathered(codes: Codes, counts: Array, most: int) -> tuple[Codes, Array]:
    """Return the cells with weight in ascending order, each once, with the sums of its counts [2, n].

    If there are more than `most` cells, neighbours are merged; the widest cells, up to 512 per task, are not merged.
    """
    some = counts.any(axis=0)
    if not some.all():
        codes, counts = codes[some], counts[:, some]
    if not len(codes):
        return codes, counts
    falls = np.count_nonzero(codes[1:] < codes[:-1])
    if falls:
        # Both give the same result every time for the same codes. Which is faster depends on the number of runs.
        order = np.argsort(codes, kind="stable" if falls < FEW_RUNS else "quicksort")
        codes, counts = codes[order], np.take(counts, order, axis=1)
    apart = codes[1:] != codes[:-1]
    if np.count_nonzero(apart) < most:
        starts = np.flatnonzero(np.r_[True, apart])
        return codes[starts], np.add.reduceat(counts, starts, axis=1)
    starts = _starts_of_merged(codes, _importance(codes, counts), apart, most)
    return _narrowest(codes[starts], codes[np.r_[starts[1:], len(codes)] - 1]), np.add.reduceat(counts, starts, axis=1)


def _starts_of_merged(codes: Codes, importance: Array, apart: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """Return the first positions of at most `most` merged cells; `apart` [n - 1] is True where neighbours differ.

    Marks are set among the cells at equal distances of importance. Cells are merged into the widest cell that contains
    less than two marks. Its importance is less than two distances; a cell with more importance is not merged.
    """
    levels = _levels(codes[:-1], codes[1:])
    shifts = (levels + 1).astype(np.uint64)
    around = codes[1:] >> shifts
    marks = max(
        1, most * 5 // 8
    )  # which leave about 7/8 of `most` cells, for there are cells without a mark between them
    while True:
        at = np.searchsorted(importance, importance[-1] / marks * np.arange(1, marks))
        marked = np.r_[_NOWHERE, _NOWHERE, codes[at], _NOWHERE, _NOWHERE]
        before = np.repeat(np.arange(marks), np.diff(at, prepend=0, append=len(codes) - 1))
        # A cell around a gap with two marks contains two neighbours of the four marks nearest to the gap, two on each
        # side: if the farther mark of a side is inside, so is the nearer one.
        inside = [marked[before + nth] >> shifts == around for nth in range(4)]
        second = inside[0] | (inside[1] & inside[2]) | inside[3]
        starts = np.flatnonzero(np.r_[True, apart & (second | (levels > LEVELS))])
        if len(starts) <= most or marks < 2:
            return starts
        marks = marks * 3 // 4


def _importance(codes: Codes, counts: Array) -> NDArray[np.float64]:
    """Return the cumulative importance of cells: their fraction of both classes of the task, plus a top weight.

    The top weight of a cell is TOP times its fraction of what a class has from it upwards; the sum is a logarithm. It
    is there since precision changes fastest among the highest logits.
    """
    upto = np.zeros(len(codes))
    tasks = np.flatnonzero(np.r_[True, codes[1:] >> np.uint64(TASK_BITS) != codes[:-1] >> np.uint64(TASK_BITS), True])
    for start, stop in itertools.pairwise(tasks):
        for each in counts[:, start:stop]:
            below = np.cumsum(each)
            if below[-1] > 0.0:
                left = np.maximum(1.0 - below / below[-1], 1.0 / len(codes))
                upto[start:stop] += 1.0 - left - TOP * np.log(left)
        upto[stop:] += upto[stop - 1]
    return upto


def _narrowest(first: Codes, last: Codes) -> Codes:
    """Return the narrowest cell that contains both of two cells, and so all between them."""
    levels = _levels(first, last).astype(np.uint64)
    return (first >> levels | np.uint64(1)) << levels


def _levels(first: Codes, last: Codes) -> NDArray[np.int32]:
    """Return the level of the narrowest cell that contains both of two cells.

    It is the highest of three bits: the level bits of both cells, and the highest bit in which they differ.
    """
    bits = (first & -first) | (last & -last) | (first ^ last)
    digits: NDArray[np.int32] = np.frexp(bits.astype(np.float64))[1]  # float64 rounds only where tasks differ
    return digits - 1
