"""A vector of sixteen float32 lanes, `f32x16`, and the operations of kernels on it.

LLVM's vectorizer gives up on numba's slices, strided views and constant trip counts; explicit vector loads and stores
do not depend on it. `lanes` is the number of lanes that count: the others read as zero and are not written, so one loop
body serves any dim. Positions count elements of the array.
"""

import operator

from llvmlite import ir

# The public numba.extending has no vector type, and its @overload cannot give `+` a meaning in LLVM instructions for
# such a type without a Python body. Hence these private parts of numba.core; pyproject.toml bounds numba's version.
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
FLOATS, INTS = (ir.VectorType(kind, LANES) for kind in (FLOAT, I32))
MASK = ir.VectorType(BIT, LANES)
NUMBERS = ir.Constant(INTS, list(range(LANES)))
"""The numbers of the lanes, 0 to 15."""
EXPONENT, MAGNITUDE = 0x7F800000, 0x7FFFFFFF


class F32x16(types.Type):
    """The type `f32x16` in numba's type system."""

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


def all_lanes(kind, value):
    """Return a constant vector with a number in all lanes."""
    return ir.Constant(kind, [value] * LANES)


def spread(builder, scalar, kind):
    """Return a vector with a scalar in all lanes."""
    nothing = ir.Constant(kind, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, I32(0)), nothing, all_lanes(INTS, 0))


def _address(context, builder, array_type, array, at, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.PointerType(kind))


def call(builder, name, result, *arguments):
    """Call one of LLVM's intrinsic functions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _first(builder, lanes):
    """Return the mask of the first `lanes` lanes."""
    return builder.icmp_signed("<", NUMBERS, spread(builder, builder.trunc(lanes, I32), INTS))


def read_lanes(context, builder, array_type, array, at, lanes, kind, suffix, align):
    """Read a vector of `kind` from array[at]; all sixteen lanes are one unmasked load."""
    pointer = _address(context, builder, array_type, array, at, kind)
    place = cgutils.alloca_once(builder, kind)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            value = builder.load(pointer)
            value.align = align
            builder.store(value, place)
        with part:
            masked = call(
                builder, f"llvm.masked.load.{suffix}.p0", kind, pointer, I32(align), _first(builder, lanes), kind(None)
            )
            builder.store(masked, place)
    return builder.load(place)


def write_lanes(context, builder, array_type, array, at, value, lanes, suffix, align):
    """Write a vector to array[at]; all sixteen lanes are one unmasked store."""
    pointer = _address(context, builder, array_type, array, at, value.type)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            builder.store(value, pointer).align = align
        with part:
            call(
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
    """Return float32 lanes from array[at]."""

    def generate(context, builder, kind, arguments):
        return read_lanes(context, builder, kind.args[0], *arguments, FLOATS, "v16f32", 4)

    return f32x16(array, types.uintp, types.int64), generate


@intrinsic
def store(typing_context, array, at, value, lanes):
    """Write float32 lanes to array[at]."""

    def generate(context, builder, kind, arguments):
        return write_lanes(context, builder, kind.args[0], *arguments, "v16f32", 4)

    return types.void(array, types.uintp, f32x16, types.int64), generate


@intrinsic
def load_scalar(typing_context, array, at):
    """Return one float32 that begins at array[at] of an array of any dtype, aligned or not."""

    def generate(context, builder, kind, arguments):
        value = builder.load(_address(context, builder, kind.args[0], *arguments, FLOAT))
        value.align = 1
        return value

    return types.float32(array, types.uintp), generate


@intrinsic
def store_scalar(typing_context, array, at, value):
    """Write one float32 to the position of array[at], aligned or not."""

    def generate(context, builder, kind, arguments):
        pointer = _address(context, builder, kind.args[0], *arguments[:2], FLOAT)
        builder.store(arguments[2], pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.uintp, types.float32), generate


# Between lanes.


@intrinsic
def splat(typing_context, scalar):
    """Return the scalar in all lanes."""

    def generate(context, builder, kind, arguments):
        return spread(builder, arguments[0], FLOATS)

    return f32x16(types.float32), generate


@intrinsic
def total(typing_context, value):
    """Return the sum of the lanes, added pairwise and always in the same order."""

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
            return call(builder, f"llvm.{name}.v16f32", FLOATS, *arguments)

        return f32x16(f32x16), generate

    return function


def _pairwise(name):
    @intrinsic
    def function(typing_context, one, other):
        def generate(context, builder, kind, arguments):
            return call(builder, f"llvm.{name}.v16f32", FLOATS, *arguments)

        return f32x16(f32x16, f32x16), generate

    return function


square_root, absolute = _elementwise("sqrt"), _elementwise("fabs")
smaller, greater, with_sign_of = _pairwise("minnum"), _pairwise("maxnum"), _pairwise("copysign")


@intrinsic
def finite(typing_context, value):
    """Return True if no lane is NaN or infinite."""

    def generate(context, builder, kind, arguments):
        exponents = builder.and_(builder.bitcast(arguments[0], INTS), all_lanes(INTS, EXPONENT))
        bad = builder.icmp_unsigned("==", exponents, all_lanes(INTS, EXPONENT))
        return builder.icmp_unsigned("==", builder.bitcast(bad, I16), I16(0))

    return types.boolean(f32x16), generate


@intrinsic
def where_zero(typing_context, value, one, other):
    """Return the lanes of `one` where the value is 0, of `other` elsewhere."""

    def generate(context, builder, kind, arguments):
        value, one, other = arguments
        return builder.select(builder.fcmp_ordered("==", value, FLOATS(None)), one, other)

    return f32x16(f32x16, f32x16, f32x16), generate


@intrinsic
def greater_magnitude(typing_context, one, other):
    """Return the greater absolute value per lane; NaN is greater than anything."""

    def generate(context, builder, kind, arguments):
        sizes = [builder.and_(builder.bitcast(each, INTS), all_lanes(INTS, MAGNITUDE)) for each in arguments]
        return builder.bitcast(call(builder, "llvm.umax.v16i32", INTS, *sizes), FLOATS)

    return f32x16(f32x16, f32x16), generate


@intrinsic
def greatest_magnitude(typing_context, value):
    """Return the greatest absolute value of all lanes; NaN is greater than anything."""

    def generate(context, builder, kind, arguments):
        sizes = builder.and_(builder.bitcast(arguments[0], INTS), all_lanes(INTS, MAGNITUDE))
        return builder.bitcast(call(builder, "llvm.vector.reduce.umax.v16i32", I32, sizes), FLOAT)

    return types.float32(f32x16), generate
