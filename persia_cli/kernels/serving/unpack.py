"""The conversion of columns of numbers in the body of a request to a block of numbers and a block of ids."""

import numpy as np
from numba import types

from persia_cli.kernels.toolchain.compile import kernel, read, write
from persia_cli.kernels.toolchain.intrinsics import load64
from persia_cli.kernels.toolchain.simd import load_scalar

U8, U64, I64, F32 = types.uint8, types.uint64, types.int64, types.float32
ZERO, FOUR, EIGHT = np.uint64(0), np.uint64(4), np.uint64(8)


@kernel(types.boolean(read(U8), read(I64), read(I64), read(I64), read(I64), U64, write(F32), write(U64)))
def unpack(body, dense_begins, dense_steps, id_begins, id_steps, size, dense, ids):
    """Write float32 columns to dense[size, columns] and those of 64 bits to ids[columns, size]; both are flat.

    A column begins at a byte of the body, and its step is 1, or 0 if its only value is that of all samples. Return
    whether all float32 values are finite.
    """
    width, strange = np.uint64(dense_begins.size), 0
    for column in range(width):
        begin, step = np.uint64(dense_begins[column]), np.uint64(dense_steps[column]) * FOUR
        for sample in range(size):
            value = load_scalar(body, begin + sample * step)
            dense[sample * width + column] = value
            strange += np.int64(value - value != np.float32(0))  # NaN for values that are not finite
    for column in range(np.uint64(id_begins.size)):
        begin, step = np.uint64(id_begins[column]), np.uint64(id_steps[column]) * EIGHT
        for sample in range(size):
            ids[column * size + sample] = load64(body, begin + sample * step)
    return strange == 0
