"""Rows of numbers of 8 bits with one scale: a value is number * scale, with numbers from -127 to 127.

The scale is a row's greatest magnitude / 127, rounded to a float32 of 23 significant bits, one less than float32 has.
So the greatest value is always the number 127 or -127, and a row that is read and written again keeps all its bits.
"""

import numpy as np
from llvmlite import ir
from numba import types

from persia_cli.kernels.rows.halves import noise_lanes
from persia_cli.kernels.toolchain.compile import inlined
from persia_cli.kernels.toolchain.intrinsics import ARRAY, BYTE, call, instruction
from persia_cli.kernels.toolchain.simd import FLOATS, INTS, LANES, all_lanes, f32x16, read_lanes, write_lanes

BYTES = ir.VectorType(BYTE, LANES)
GREATEST = np.float32(127.0)
"""The greatest number of a value."""
LEAST_SCALE, MOST_SCALE = np.float32(2.0**-126), np.float32(2.0**121)
"""Smaller scales would have fewer bits; with greater ones values would overflow."""
NAN = np.float32(np.nan)
ONE = np.uint32(1)


@inlined
def int8_scale(magnitude):
    """Return the scale of a row, given its greatest magnitude; NaN if that is not finite, for then the row is NaN."""
    if not magnitude < np.float32(np.inf):
        return NAN
    bits = np.float32(magnitude / GREATEST).view(np.uint32)
    # Rounded to even, so that scales are not greater in the mean.
    bits = np.uint32((bits + ((bits >> ONE) & ONE)) & ~ONE)
    return min(max(bits.view(np.float32), LEAST_SCALE), MOST_SCALE)


@instruction(f32x16, ARRAY, types.uintp, types.int64)
def load_int8(builder, data, at, lanes):
    """Return the numbers of lanes, which begin at data[at] of an array of any dtype."""
    return builder.sitofp(read_lanes(builder, data, at, lanes, BYTES, "v16i8", 1), FLOATS)


def _write(builder, data, at, value, lanes):
    """Write whole values as numbers; those beyond the range become its ends, and NaN becomes 127."""
    value = call(builder, "llvm.minnum.v16f32", FLOATS, value, all_lanes(FLOATS, float(GREATEST)))
    value = call(builder, "llvm.maxnum.v16f32", FLOATS, value, all_lanes(FLOATS, -float(GREATEST)))
    numbers = builder.trunc(builder.fptosi(value, INTS), BYTES)
    write_lanes(builder, data, at, numbers, lanes, "v16i8", 1)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64)
def store_int8(builder, data, at, value, lanes):
    """Write lanes, divided by the row's scale, as numbers, rounded to nearest even."""
    _write(builder, data, at, call(builder, "llvm.rint.v16f32", FLOATS, value), lanes)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64, types.uint32, types.int64)
def store_int8_at_random(builder, data, at, value, lanes, start, column):
    """Write lanes, divided by the row's scale, with stochastic rounding; random bits from start and column."""
    # The chance has 14 bits and lies in the middle of its steps. So it moves no number that is nearer than 2^-15 to a
    # whole one, which is more than the error of the division.
    bits = builder.and_(noise_lanes(builder, start, column), all_lanes(INTS, 0x3FFF))
    chance = builder.fmul(builder.uitofp(bits, FLOATS), all_lanes(FLOATS, 2.0**-14))
    chance = builder.fadd(chance, all_lanes(FLOATS, 2.0**-15))
    _write(builder, data, at, call(builder, "llvm.floor.v16f32", FLOATS, builder.fadd(value, chance)), lanes)
