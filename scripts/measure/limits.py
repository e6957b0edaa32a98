"""The best speed of the machine's memory, in minimal loops."""

import numpy as np
from numba import types

from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import prefetch
from persia_cli.kernels.toolchain.simd import load, splat, store

F32, I64 = types.float32, types.int64
LINE = 16
"""float32 values of a cache line."""
AHEAD = 32
"""Rows prefetched ahead: enough for rows of several cache lines; rows of one line gain from more."""


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
            here = at + np.uint64(c)
            store(table, here, load(table, here, width - c) + little, width - c)
