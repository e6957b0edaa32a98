"""The best speed of the machine's memory, in minimal loops, and plain index code that a store must beat."""

import numpy as np
from numba import types

from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.simd import load, splat, store

F32, U64, I64 = types.float32, types.uint64, types.int64
LINE = 16
"""float32 values of a cache line."""
AHEAD = 32
"""Rows prefetched ahead: enough for rows of several cache lines; rows of one line gain from more."""
HASH = np.uint64(0xD6E8FEB86659FD93)
EMPTY = np.uint64(2**64 - 1)


@kernel(types.void(read(F32), I64, I64, read(I64), write(F32)))
def gather(table, width, dim, rows, out):
    """Write the first dim values of table[row] (flat [n, width]) for each row: the upper limit of a look-up."""
    columns, stride = np.uint64(dim), np.uint64(width)
    count = np.uint64(rows.size)
    for i in range(count):
        ahead = i + np.uint64(AHEAD)
        if ahead < count:
            line = np.uint64(rows[ahead]) * stride
            for c in range(0, dim, LINE):
                prefetch(table, line + np.uint64(c))
        source, to = np.uint64(rows[i]) * stride, i * columns
        for c in range(0, dim, LINE):
            store(out, to + np.uint64(c), load(table, source + np.uint64(c), dim - c), dim - c)


@kernel(types.void(write(F32), I64, read(I64)))
def read_modify_write(table, width, rows):
    """Add a little to every value of table[row] (flat [n, width]) for each row: the upper limit of an update."""
    stride = np.uint64(width)
    count = np.uint64(rows.size)
    little = splat(np.float32(1e-9))
    for i in range(count):
        ahead = i + np.uint64(AHEAD)
        if ahead < count:
            line = np.uint64(rows[ahead]) * stride
            for c in range(0, width, LINE):
                prefetch(table, line + np.uint64(c))
        at = np.uint64(rows[i]) * stride
        for c in range(0, width, LINE):
            place = at + np.uint64(c)
            store(table, place, load(table, place, width - c) + little, width - c)


@kernel(types.void(write(U64), read(U64), read(I64)))
def fill_linear(slots, keys, rows):
    """Put distinct keys and their rows into an empty table of linear probing: (key, row) side by side.

    `slots` is flat [n, 2], with the key EMPTY in free slots; no key may be EMPTY.
    """
    count = np.uint64(slots.size // 2)
    for i in range(keys.size):
        key = keys[i]
        slot = (((key * HASH) >> np.uint64(32)) * count) >> np.uint64(32)
        while slots[slot + slot] != EMPTY:
            slot += np.uint64(1)
            if slot == count:
                slot = np.uint64(0)
        slots[slot + slot] = key
        slots[slot + slot + np.uint64(1)] = np.uint64(rows[i])


@kernel(types.void(read(U64), read(U64), write(I64)))
def find_linear(slots, keys, rows):
    """Write the row of each key, or -1 if there is none, with plain linear probing."""
    count = np.uint64(slots.size // 2)
    for i in range(keys.size):
        key = keys[i]
        slot = (((key * HASH) >> np.uint64(32)) * count) >> np.uint64(32)
        row = np.int64(-1)
        while slots[slot + slot] != EMPTY:
            if slots[slot + slot] == key:
                row = np.int64(slots[slot + slot + np.uint64(1)])
                break
            slot += np.uint64(1)
            if slot == count:
                slot = np.uint64(0)
        rows[i] = row
