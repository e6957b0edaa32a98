"""Halves in memory: float16 or bfloat16 lanes as `f32x16`, and back with rounding to nearest or at random.

They lie in uint16 arrays, or in uint8 arrays at any byte.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from persia_cli.kernels.simd import (
    FLOATS,
    HALF,
    I16,
    I32,
    INTS,
    LANES,
    NUMBERS,
    all_lanes,
    call,
    f32x16,
    read_lanes,
    spread,
    write_lanes,
)

SHORTS, HALVES = ir.VectorType(I16, LANES), ir.VectorType(HALF, LANES)


@intrinsic
def load_float16(typing_context, array, at, lanes):
    """float16 lanes from uint16 array[at], widened."""

    def generate(context, builder, kind, arguments):
        bits = read_lanes(context, builder, kind.args[0], *arguments, SHORTS, "v16i16", 1)
        return builder.fpext(builder.bitcast(bits, HALVES), FLOATS)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def load_bfloat16(typing_context, array, at, lanes):
    """bfloat16 lanes from uint16 array[at], widened."""

    def generate(context, builder, kind, arguments):
        bits = read_lanes(context, builder, kind.args[0], *arguments, SHORTS, "v16i16", 1)
        return builder.bitcast(builder.shl(builder.zext(bits, INTS), all_lanes(INTS, 16)), FLOATS)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def store_float16(typing_context, array, at, value, lanes):
    """Write lanes as float16, rounded to nearest even."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes = arguments
        bits = builder.bitcast(builder.fptrunc(value, HALVES), SHORTS)
        return write_lanes(context, builder, kind.args[0], array, at, bits, lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64), generate


@intrinsic
def store_bfloat16(typing_context, array, at, value, lanes):
    """Write lanes as bfloat16, rounded to nearest even; NaN stays NaN."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes = arguments
        bits = builder.bitcast(value, INTS)
        odd = builder.and_(builder.lshr(bits, all_lanes(INTS, 16)), all_lanes(INTS, 1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, all_lanes(INTS, 0x7FFF))), all_lanes(INTS, 16))
        kept = builder.select(builder.fcmp_unordered("uno", value, value), all_lanes(INTS, 0x7FC0), rounded)
        return write_lanes(context, builder, kind.args[0], array, at, builder.trunc(kept, SHORTS), lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64), generate


def _noise(builder, start, at):
    """32 random bits per lane: a hash of start + (at + lane) * an odd constant (two rounds of multiply and shift)."""
    column = builder.add(spread(builder, builder.trunc(at, I32), INTS), NUMBERS)
    x = builder.add(spread(builder, start, INTS), builder.mul(column, all_lanes(INTS, 0x9E3779B9)))
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = builder.mul(builder.xor(x, builder.lshr(x, all_lanes(INTS, shift))), all_lanes(INTS, factor))
    return builder.xor(x, builder.lshr(x, all_lanes(INTS, 15)))


@intrinsic
def store_bfloat16_at_random(typing_context, array, at, value, lanes, start, column):
    """Write lanes as bfloat16, up or down with the probability that keeps the mean; random bits from start, column."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes, start, column = arguments
        noise = builder.and_(_noise(builder, start, column), all_lanes(INTS, 0xFFFF))
        rounded = builder.lshr(builder.add(builder.bitcast(value, INTS), noise), all_lanes(INTS, 16))
        return write_lanes(
            context, builder, kind.args[0], array, at, builder.trunc(rounded, SHORTS), lanes, "v16i16", 1
        )

    return types.void(array, types.uintp, f32x16, types.int64, types.uint32, types.int64), generate


@intrinsic
def store_float16_at_random(typing_context, array, at, value, lanes, start, column):
    """As `store_bfloat16_at_random`, for float16; values beyond its range become its greatest.

    Above 2^-14 the 13 bits that float16 lacks decide; below, multiples of 2^-24 are rounded to.
    """

    def generate(context, builder, kind, arguments):
        array, at, value, lanes, start, column = arguments
        noise = builder.and_(_noise(builder, start, column), all_lanes(INTS, 0x1FFF))
        value = call(builder, "llvm.minnum.v16f32", FLOATS, value, all_lanes(FLOATS, 65504.0))
        value = call(builder, "llvm.maxnum.v16f32", FLOATS, value, all_lanes(FLOATS, -65504.0))
        sum_ = builder.add(builder.bitcast(value, INTS), noise)
        normal = builder.bitcast(builder.and_(sum_, all_lanes(INTS, 0xFFFFE000)), FLOATS)
        share = builder.fmul(builder.uitofp(noise, FLOATS), all_lanes(FLOATS, 2.0**-13))
        steps = call(
            builder, "llvm.floor.v16f32", FLOATS, builder.fadd(builder.fmul(value, all_lanes(FLOATS, 2.0**24)), share)
        )
        tiny = builder.fmul(steps, all_lanes(FLOATS, 2.0**-24))
        size = call(builder, "llvm.fabs.v16f32", FLOATS, value)
        rounded = builder.select(builder.fcmp_ordered("<", size, all_lanes(FLOATS, 2.0**-14)), tiny, normal)
        bits = builder.bitcast(builder.fptrunc(rounded, HALVES), SHORTS)
        return write_lanes(context, builder, kind.args[0], array, at, bits, lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64, types.uint32, types.int64), generate
