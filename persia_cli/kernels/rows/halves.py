"""Loads and stores of float16 and bfloat16 lanes as `f32x16`, rounded to nearest or stochastically.

The 16-bit values ("halves") lie in uint16 arrays, or in uint8 arrays at any byte.
"""

from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from persia_cli.kernels.toolchain.intrinsics import ARRAY, I32, call, instruction
from persia_cli.kernels.toolchain.simd import (
    FLOATS,
    I16,
    INTS,
    LANES,
    NUMBERS,
    all_lanes,
    f32x16,
    read_lanes,
    spread,
    write_lanes,
)

SHORTS, HALVES = ir.VectorType(I16, LANES), ir.VectorType(ir.HalfType(), LANES)


PROBE = """define <16 x half> @narrow(<16 x float> %x) {
  %y = fptrunc <16 x float> %x to <16 x half>
  ret <16 x half> %y
}"""


@cache
def _converts():
    """Return True if the processor has instructions to convert float16.

    Without them LLVM would emit calls of library functions that are not linked in.
    """
    machine = cpu_target.target_context.codegen()._tm
    return "__truncsfhf2" not in machine.emit_assembly(llvm.parse_assembly(PROBE))


def _widened(builder, halves):
    """Return the float32 values of float16 bits."""
    if _converts():
        return builder.fpext(builder.bitcast(halves, HALVES), FLOATS)
    bits = builder.zext(halves, INTS)
    sign = builder.shl(builder.and_(bits, all_lanes(INTS, 0x8000)), all_lanes(INTS, 16))
    size = builder.shl(builder.and_(bits, all_lanes(INTS, 0x7FFF)), all_lanes(INTS, 13))
    # The exponent's bias differs by 112; a multiplication handles subnormal values too.
    value = builder.bitcast(builder.fmul(builder.bitcast(size, FLOATS), all_lanes(FLOATS, 2.0**112)), INTS)
    special = builder.icmp_unsigned(">=", size, all_lanes(INTS, 0x7C00 << 13))
    value = builder.select(special, builder.or_(size, all_lanes(INTS, 0x7F800000)), value)
    return builder.bitcast(builder.or_(value, sign), FLOATS)


def _narrowed(builder, value):
    """Return the float16 bits of float32 values, rounded to nearest even."""
    if _converts():
        return builder.bitcast(builder.fptrunc(value, HALVES), SHORTS)
    bits = builder.bitcast(value, INTS)
    size = builder.and_(bits, all_lanes(INTS, 0x7FFFFFFF))
    sign = builder.lshr(builder.and_(bits, all_lanes(INTS, 0x80000000)), all_lanes(INTS, 16))
    # Below 2^-14 adding 1/2 leaves multiples of 2^-24 in the last bits, rounded by the addition.
    tiny = builder.bitcast(builder.fadd(builder.bitcast(size, FLOATS), all_lanes(FLOATS, 0.5)), INTS)
    tiny = builder.sub(tiny, all_lanes(INTS, 0x3F000000))
    odd = builder.and_(builder.lshr(size, all_lanes(INTS, 13)), all_lanes(INTS, 1))
    normal = builder.add(size, builder.add(odd, all_lanes(INTS, 0xFFF - (112 << 23))))
    normal = builder.lshr(normal, all_lanes(INTS, 13))
    half = builder.select(builder.icmp_unsigned("<", size, all_lanes(INTS, 113 << 23)), tiny, normal)
    # From 65520 on infinity is nearest; NaN stays NaN.
    half = builder.select(builder.icmp_unsigned(">=", size, all_lanes(INTS, 0x477FF000)), all_lanes(INTS, 0x7C00), half)
    half = builder.select(builder.icmp_unsigned(">", size, all_lanes(INTS, 0x7F800000)), all_lanes(INTS, 0x7E00), half)
    return builder.trunc(builder.or_(half, sign), SHORTS)


def _read(builder, data, at, lanes):
    return read_lanes(builder, data, at, lanes, SHORTS, "v16i16", 1)


def _write(builder, data, at, bits, lanes):
    """Write the lower 16 bits of int32 lanes, or int16 lanes."""
    shorts = bits if bits.type == SHORTS else builder.trunc(bits, SHORTS)
    write_lanes(builder, data, at, shorts, lanes, "v16i16", 1)


@instruction(f32x16, ARRAY, types.uintp, types.int64)
def load_float16(builder, data, at, lanes):
    """Return float16 lanes from uint16 data[at], converted to float32."""
    return _widened(builder, _read(builder, data, at, lanes))


@instruction(f32x16, ARRAY, types.uintp, types.int64)
def load_bfloat16(builder, data, at, lanes):
    """Return bfloat16 lanes from uint16 data[at], converted to float32."""
    bits = builder.zext(_read(builder, data, at, lanes), INTS)
    return builder.bitcast(builder.shl(bits, all_lanes(INTS, 16)), FLOATS)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64)
def store_float16(builder, data, at, value, lanes):
    """Write lanes as float16, rounded to nearest even."""
    _write(builder, data, at, _narrowed(builder, value), lanes)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64)
def store_bfloat16(builder, data, at, value, lanes):
    """Write lanes as bfloat16, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, INTS)
    odd = builder.and_(builder.lshr(bits, all_lanes(INTS, 16)), all_lanes(INTS, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, all_lanes(INTS, 0x7FFF))), all_lanes(INTS, 16))
    result = builder.select(builder.fcmp_unordered("uno", value, value), all_lanes(INTS, 0x7FC0), rounded)
    _write(builder, data, at, result, lanes)


def noise_lanes(builder, start, at):
    """Return 32 random bits per lane: start + (at + lane) * an odd constant, hashed by two rounds of multiply-shift."""
    column = builder.add(spread(builder, builder.trunc(at, I32), INTS), NUMBERS)
    x = builder.add(spread(builder, start, INTS), builder.mul(column, all_lanes(INTS, 0x9E3779B9)))
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = builder.mul(builder.xor(x, builder.lshr(x, all_lanes(INTS, shift))), all_lanes(INTS, factor))
    return builder.xor(x, builder.lshr(x, all_lanes(INTS, 15)))


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64, types.uint32, types.int64)
def store_bfloat16_at_random(builder, data, at, value, lanes, start, column):
    """Write lanes as bfloat16 with stochastic rounding, whose mean is the value; random bits from start and column."""
    noise = builder.and_(noise_lanes(builder, start, column), all_lanes(INTS, 0xFFFF))
    rounded = builder.lshr(builder.add(builder.bitcast(value, INTS), noise), all_lanes(INTS, 16))
    _write(builder, data, at, rounded, lanes)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64, types.uint32, types.int64)
def store_float16_at_random(builder, data, at, value, lanes, start, column):
    """Write lanes as float16 with stochastic rounding; values beyond its range become its greatest value."""
    # From 2^-14 on, random bits are added to the 13 mantissa bits that float16 lacks. Smaller values are subnormal:
    # they are rounded to multiples of 2^-24.

    def scaled(numbers, exponent):
        return builder.fmul(numbers, all_lanes(FLOATS, 2.0**exponent))

    noise = builder.and_(noise_lanes(builder, start, column), all_lanes(INTS, 0x1FFF))
    value = call(builder, "llvm.minnum.v16f32", FLOATS, value, all_lanes(FLOATS, 65504.0))
    value = call(builder, "llvm.maxnum.v16f32", FLOATS, value, all_lanes(FLOATS, -65504.0))
    sum_ = builder.add(builder.bitcast(value, INTS), noise)
    normal = builder.bitcast(builder.and_(sum_, all_lanes(INTS, 0xFFFFE000)), FLOATS)
    chance = scaled(builder.uitofp(noise, FLOATS), -13)
    steps = call(builder, "llvm.floor.v16f32", FLOATS, builder.fadd(scaled(value, 24), chance))
    size = call(builder, "llvm.fabs.v16f32", FLOATS, value)
    is_tiny = builder.fcmp_ordered("<", size, all_lanes(FLOATS, 2.0**-14))
    _write(builder, data, at, _narrowed(builder, builder.select(is_tiny, scaled(steps, -24), normal)), lanes)
