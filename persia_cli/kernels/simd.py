"""A value of sixteen float32 lanes, `f32x16`, and what kernels do with it.

numba's own vectorizer gives up on slices, strided views and constant trip counts; explicit loads and stores do not.
`lanes` says how many of the sixteen count: missing ones read as zero and are not written, so one loop body serves any
dim. Halves (float16 or bfloat16) lie in uint16 arrays, or in uint8 arrays at any byte. Positions count elements
of the array.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

LANES = 16
BIT, I16, I32, I64, FLOAT, HALF = (
    ir.IntType(1),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
    ir.HalfType(),
)
FLOATS, INTS, SHORTS, HALVES = (ir.VectorType(kind, LANES) for kind in (FLOAT, I32, I16, HALF))
MASK = ir.VectorType(BIT, LANES)
EXPONENT, MAGNITUDE = 0x7F800000, 0x7FFFFFFF


class F32x16(types.Type):
    """numba's type of the value."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


f32x16 = F32x16()


@register_model(F32x16)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, FLOATS)


def _operator(function, instruction):
    @infer_global(function)
    class _Template(AbstractTemplate):
        def generic(self, arguments, keywords):
            if len(arguments) == 2 and all(isinstance(each, F32x16) for each in arguments):
                return signature(f32x16, *arguments)
            return None

    @lower_builtin(function, F32x16, F32x16)
    def _lower(context, builder, kind, arguments):
        return getattr(builder, instruction)(*arguments)


for _function, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operator(_function, _instruction)


# Pieces of generated code.


def _all(kind, value):
    return ir.Constant(kind, [value] * LANES)


def _spread(builder, scalar, kind):
    nothing = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, I32(0)), nothing, _all(INTS, 0))


def _address(context, builder, array_type, array, at, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.PointerType(kind))


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _first(builder, lanes):
    """The mask of the first `lanes` lanes."""
    numbers = ir.Constant(INTS, list(range(LANES)))
    return builder.icmp_signed("<", numbers, _spread(builder, builder.trunc(lanes, I32), INTS))


def _read(context, builder, array_type, array, at, lanes, kind, suffix, align):
    """Read lanes of any width; a full vector is one plain load."""
    pointer = _address(context, builder, array_type, array, at, kind)
    place = cgutils.alloca_once(builder, kind)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            value = builder.load(pointer)
            value.align = align
            builder.store(value, place)
        with part:
            masked = _call(
                builder, f"llvm.masked.load.{suffix}.p0", kind, pointer, I32(align), _first(builder, lanes), kind(None)
            )
            builder.store(masked, place)
    return builder.load(place)


def _write(context, builder, array_type, array, at, value, lanes, suffix, align):
    pointer = _address(context, builder, array_type, array, at, value.type)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            builder.store(value, pointer).align = align
        with part:
            _call(
                builder,
                f"llvm.masked.store.{suffix}.p0",
                ir.VoidType(),
                value,
                pointer,
                I32(align),
                _first(builder, lanes),
            )
    return context.get_dummy_value()


# float32 in memory.


@intrinsic
def load(typing_context, array, at, lanes):
    """float32 lanes from array[at]."""

    def generate(context, builder, kind, arguments):
        return _read(context, builder, kind.args[0], *arguments, FLOATS, "v16f32", 4)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def store(typing_context, array, at, value, lanes):
    """Write float32 lanes to array[at]."""

    def generate(context, builder, kind, arguments):
        return _write(context, builder, kind.args[0], *arguments, "v16f32", 4)

    return types.void(array, types.uintp, f32x16, types.int64), generate


@intrinsic
def load_scalar(typing_context, array, at):
    """One float32 that begins at array[at] of an array of any dtype, without need of alignment."""

    def generate(context, builder, kind, arguments):
        value = builder.load(_address(context, builder, kind.args[0], *arguments, FLOAT))
        value.align = 1
        return value

    return types.float32(array, types.uintp), generate


@intrinsic
def store_scalar(typing_context, array, at, value):
    """Write one float32 to where array[at] begins, without need of alignment."""

    def generate(context, builder, kind, arguments):
        pointer = _address(context, builder, kind.args[0], *arguments[:2], FLOAT)
        builder.store(arguments[2], pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.uintp, types.float32), generate


# Halves in memory.


@intrinsic
def load_float16(typing_context, array, at, lanes):
    """float16 lanes from uint16 array[at], widened."""

    def generate(context, builder, kind, arguments):
        bits = _read(context, builder, kind.args[0], *arguments, SHORTS, "v16i16", 1)
        return builder.fpext(builder.bitcast(bits, HALVES), FLOATS)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def load_bfloat16(typing_context, array, at, lanes):
    """bfloat16 lanes from uint16 array[at], widened."""

    def generate(context, builder, kind, arguments):
        bits = _read(context, builder, kind.args[0], *arguments, SHORTS, "v16i16", 1)
        return builder.bitcast(builder.shl(builder.zext(bits, INTS), _all(INTS, 16)), FLOATS)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def store_float16(typing_context, array, at, value, lanes):
    """Write lanes as float16, rounded to nearest even."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes = arguments
        bits = builder.bitcast(builder.fptrunc(value, HALVES), SHORTS)
        return _write(context, builder, kind.args[0], array, at, bits, lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64), generate


@intrinsic
def store_bfloat16(typing_context, array, at, value, lanes):
    """Write lanes as bfloat16, rounded to nearest even; NaN stays NaN."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes = arguments
        bits = builder.bitcast(value, INTS)
        odd = builder.and_(builder.lshr(bits, _all(INTS, 16)), _all(INTS, 1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, _all(INTS, 0x7FFF))), _all(INTS, 16))
        kept = builder.select(builder.fcmp_unordered("uno", value, value), _all(INTS, 0x7FC0), rounded)
        return _write(context, builder, kind.args[0], array, at, builder.trunc(kept, SHORTS), lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64), generate


def _noise(builder, start, at):
    """32 random bits per lane: a hash of start + (at + lane) * an odd constant (two rounds of multiply and shift)."""
    numbers = ir.Constant(INTS, list(range(LANES)))
    column = builder.add(_spread(builder, builder.trunc(at, I32), INTS), numbers)
    x = builder.add(_spread(builder, start, INTS), builder.mul(column, _all(INTS, 0x9E3779B9)))
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = builder.mul(builder.xor(x, builder.lshr(x, _all(INTS, shift))), _all(INTS, factor))
    return builder.xor(x, builder.lshr(x, _all(INTS, 15)))


@intrinsic
def store_bfloat16_at_random(typing_context, array, at, value, lanes, start, column):
    """Write lanes as bfloat16, up or down with the probability that keeps the mean; random bits from start, column."""

    def generate(context, builder, kind, arguments):
        array, at, value, lanes, start, column = arguments
        noise = builder.and_(_noise(builder, start, column), _all(INTS, 0xFFFF))
        rounded = builder.lshr(builder.add(builder.bitcast(value, INTS), noise), _all(INTS, 16))
        return _write(context, builder, kind.args[0], array, at, builder.trunc(rounded, SHORTS), lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64, types.uint32, types.int64), generate


@intrinsic
def store_float16_at_random(typing_context, array, at, value, lanes, start, column):
    """As `store_bfloat16_at_random`, for float16; values beyond its range become its greatest.

    Above 2^-14 the 13 bits that float16 lacks decide; below, multiples of 2^-24 are rounded to.
    """

    def generate(context, builder, kind, arguments):
        array, at, value, lanes, start, column = arguments
        noise = builder.and_(_noise(builder, start, column), _all(INTS, 0x1FFF))
        value = _call(builder, "llvm.minnum.v16f32", FLOATS, value, _all(FLOATS, 65504.0))
        value = _call(builder, "llvm.maxnum.v16f32", FLOATS, value, _all(FLOATS, -65504.0))
        sum_ = builder.add(builder.bitcast(value, INTS), noise)
        normal = builder.bitcast(builder.and_(sum_, _all(INTS, 0xFFFFE000)), FLOATS)
        share = builder.fmul(builder.uitofp(noise, FLOATS), _all(FLOATS, 2.0**-13))
        steps = _call(
            builder, "llvm.floor.v16f32", FLOATS, builder.fadd(builder.fmul(value, _all(FLOATS, 2.0**24)), share)
        )
        tiny = builder.fmul(steps, _all(FLOATS, 2.0**-24))
        size = _call(builder, "llvm.fabs.v16f32", FLOATS, value)
        rounded = builder.select(builder.fcmp_ordered("<", size, _all(FLOATS, 2.0**-14)), tiny, normal)
        bits = builder.bitcast(builder.fptrunc(rounded, HALVES), SHORTS)
        return _write(context, builder, kind.args[0], array, at, bits, lanes, "v16i16", 1)

    return types.void(array, types.uintp, f32x16, types.int64, types.uint32, types.int64), generate


# Between lanes.


@intrinsic
def splat(typing_context, scalar):
    """The scalar in all lanes."""

    def generate(context, builder, kind, arguments):
        return _spread(builder, arguments[0], FLOATS)

    return f32x16(types.float32), generate


@intrinsic
def total(typing_context, value):
    """Sum of the lanes, halves added to halves: always in the same order."""

    def generate(context, builder, kind, arguments):
        (value,) = arguments
        width = LANES
        while width > 1:
            width //= 2
            parts = [
                builder.shuffle_vector(
                    value, value, ir.Constant(ir.VectorType(I32, width), list(range(at, at + width)))
                )
                for at in (0, width)
            ]
            value = builder.fadd(*parts)
        return builder.extract_element(value, I32(0))

    return types.float32(f32x16), generate


def _elementwise(name):
    @intrinsic
    def function(typing_context, value):
        def generate(context, builder, kind, arguments):
            return _call(builder, f"llvm.{name}.v16f32", FLOATS, *arguments)

        return f32x16(f32x16), generate

    return function


def _pairwise(name):
    @intrinsic
    def function(typing_context, one, other):
        def generate(context, builder, kind, arguments):
            return _call(builder, f"llvm.{name}.v16f32", FLOATS, *arguments)

        return f32x16(f32x16, f32x16), generate

    return function


square_root, absolute = _elementwise("sqrt"), _elementwise("fabs")
smaller, greater, with_sign_of = _pairwise("minnum"), _pairwise("maxnum"), _pairwise("copysign")


@intrinsic
def finite(typing_context, value):
    """Whether no lane is NaN or infinite."""

    def generate(context, builder, kind, arguments):
        exponents = builder.and_(builder.bitcast(arguments[0], INTS), _all(INTS, EXPONENT))
        bad = builder.icmp_unsigned("==", exponents, _all(INTS, EXPONENT))
        return builder.icmp_unsigned("==", builder.bitcast(bad, I16), I16(0))

    return types.boolean(f32x16), generate


@intrinsic
def greater_magnitude(typing_context, one, other):
    """The greater absolute value per lane; NaN is greater than anything."""

    def generate(context, builder, kind, arguments):
        sizes = [builder.and_(builder.bitcast(each, INTS), _all(INTS, MAGNITUDE)) for each in arguments]
        return builder.bitcast(_call(builder, "llvm.umax.v16i32", INTS, *sizes), FLOATS)

    return f32x16(f32x16, f32x16), generate


@intrinsic
def greatest_magnitude(typing_context, value):
    """The greatest absolute value of all lanes; NaN is greater than anything."""

    def generate(context, builder, kind, arguments):
        sizes = builder.and_(builder.bitcast(arguments[0], INTS), _all(INTS, MAGNITUDE))
        return builder.bitcast(_call(builder, "llvm.vector.reduce.umax.v16i32", I32, sizes), FLOAT)

    return types.float32(f32x16), generate
