"""Conversion of float32 rows to float16 or bfloat16 and back, for the wire and for storage.

Blocks are flat uint8 and need no alignment. A bfloat16 row is `dim` 16-bit values. A float16 row is a float32 factor,
then `dim` 16-bit values of value / factor. The factor is the power of two that brings the row's greatest magnitude into
[16384, 32768). So nothing overflows, rows of small values keep all 11 bits, and rounding is the only error.
"""

import numpy as np
from numba import types

from persia_cli.kernels.rows.halves import load_bfloat16, load_float16, store_bfloat16, store_float16
from persia_cli.kernels.toolchain.compile import inlined, kernel, read, write
from persia_cli.kernels.toolchain.simd import (
    LANES,
    greater_magnitude,
    greatest_magnitude,
    load,
    load_scalar,
    splat,
    store,
    store_scalar,
)

F32, U8, I64 = types.float32, types.uint8, types.int64
FACTOR_BYTES = 4
EXPONENT_AT = np.uint32(23)
"""Lowest bit of a float32's exponent."""


@inlined
def float16_factor(magnitude):
    """Return a row's factor and its reciprocal, given the row's greatest magnitude.

    Zero, NaN and infinity are their own factors, with reciprocal 0.
    """
    exponent = np.float32(magnitude).view(np.uint32) >> EXPONENT_AT
    if exponent == np.uint32(255) or magnitude == np.float32(0.0):
        return magnitude, np.float32(0.0)
    exponent = max(exponent, np.uint32(15))
    factor = np.uint32((exponent - np.uint32(14)) << EXPONENT_AT).view(np.float32)
    return factor, np.uint32((np.uint32(268) - exponent) << EXPONENT_AT).view(np.float32)


@kernel(types.void(read(F32), I64, write(U8)))
def to_float16(values, dim, block):
    """Encode float32 rows (flat [n, dim]) into uint8 rows of 4 + 2 * dim.

    If a row contains NaN or infinity, that is its factor, and the whole row decodes to NaN.
    """
    width = FACTOR_BYTES + 2 * dim
    for row in range(block.size // width):
        start, to = row * dim, row * width
        magnitude = load(values, start, dim)
        for c in range(LANES, dim, LANES):
            magnitude = greater_magnitude(magnitude, load(values, start + c, dim - c))
        factor, reciprocal = float16_factor(greatest_magnitude(magnitude))
        store_scalar(block, to, factor)
        scale = splat(reciprocal)
        for c in range(0, dim, LANES):
            halves = load(values, start + c, dim - c) * scale
            store_float16(block, to + FACTOR_BYTES + 2 * c, halves, dim - c)


@kernel(types.void(read(U8), I64, write(F32)))
def from_float16(block, dim, values):
    """Undo `to_float16`."""
    width = FACTOR_BYTES + 2 * dim
    for row in range(block.size // width):
        start, to = row * width, row * dim
        factor = splat(load_scalar(block, start))
        for c in range(0, dim, LANES):
            halves = load_float16(block, start + FACTOR_BYTES + 2 * c, dim - c)
            store(values, to + c, halves * factor, dim - c)


@kernel(types.void(read(F32), write(U8)))
def to_bfloat16(values, block):
    """Encode float32 values as bfloat16, rounded to nearest even."""
    for at in range(0, values.size, LANES):
        store_bfloat16(block, 2 * at, load(values, at, values.size - at), values.size - at)


@kernel(types.void(read(U8), write(F32)))
def from_bfloat16(block, values):
    """Undo `to_bfloat16`."""
    for at in range(0, values.size, LANES):
        store(values, at, load_bfloat16(block, 2 * at, values.size - at), values.size - at)
