"""Checks of an index in memory that an earlier process left."""

from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from persia_cli.kernels.table.buckets import (
    FEW,
    INDEX,
    KEYS,
    SLOTS,
    first_bucket,
    partition_of,
    row_at,
    second_bucket,
    taken,
)
from persia_cli.kernels.toolchain.compile import inlined, kernel, write
from persia_cli.kernels.toolchain.intrinsics import bits_set
from persia_cli.kernels.toolchain.needs import TAKE_OVER

U64 = types.uint64
SOUND, GAP, FOREIGN, MISPLACED, UNREACHABLE, NO_SUCH_ROW, TWICE = range(7)
"""Results of `check_index`: no fault, or the kind of the first one."""


class IndexCounts(NamedTuple):
    """The counts of an index, made anew."""

    seen: NDArray[np.uint64]
    """uint64[rows / 64, rounded up], zeros at first: a bit for each row of a slot."""
    fault: NDArray[np.uint64]
    """uint64[2]: the slot of the first fault, and the rows found before it."""


INDEX_COUNTS = types.NamedUniTuple(write(U64), 2, IndexCounts)


@kernel(types.int64(INDEX, U64, U64, INDEX_COUNTS), for_=TAKE_OVER)
def check_index(index, partitions, capacity, counts):
    """Check each slot of all buckets and count rows; return SOUND or the kind of the first fault.

    The server has `partitions` partitions, and rows must be below `capacity`. The tables of rows are not checked.
    Slots are filled from the first on; a key lies in its partition, in its first bucket, or in the second if the first
    is full or buckets are few; no row belongs to two slots. `index.fill` gets the number of rows of each partition,
    up to the first fault.
    """
    for partition in range(partitions):
        before = counts.fault[1]
        for bucket in range(partition * index.size, (partition + np.uint64(1)) * index.size):
            bits = taken(index, bucket)
            if bits & (bits + np.uint64(1)) != np.uint64(0):
                counts.fault[0] = bucket * np.uint64(SLOTS)
                return GAP
            # The bits of seen rows are at random places in memory: the processor continues while it waits for them.
            for number in range(bits_set(bits)):
                slot = bucket * np.uint64(SLOTS) + number
                fault = _check_slot(index, partition, capacity, bucket, slot, counts.seen)
                if fault != SOUND:
                    counts.fault[0] = slot
                    return fault
            counts.fault[1] += bits_set(bits)
        index.fill[partition] = np.int32(counts.fault[1] - before)
    return SOUND


@inlined
def _check_slot(index, partition, capacity, bucket, slot, seen):
    """Check one slot of a partition and record its row; return SOUND or a fault."""
    key, row = index.buckets[bucket * KEYS + (slot & np.uint64(3))], np.uint64(row_at(index, slot))
    if partition_of(index, key) != partition:
        return FOREIGN
    one = first_bucket(index, key)
    if bucket != one:
        if bucket != second_bucket(index, key, one):
            return MISPLACED
        if index.size > FEW and taken(index, one) != np.uint64(15):
            return UNREACHABLE
    if row >= capacity:
        return NO_SUCH_ROW
    word, bit = row >> np.uint64(6), np.uint64(1) << (row & np.uint64(63))
    if seen[word] & bit != np.uint64(0):
        return TWICE
    seen[word] |= bit
    return SOUND
