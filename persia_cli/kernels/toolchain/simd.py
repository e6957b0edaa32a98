"""A vector of sixteen float32 lanes, `f32x16`, and the operations of kernels on it.

LLVM's vectorizer does not handle numba's slices, strided views and constant trip counts; explicit vector loads and
stores do not depend on it. `lanes` is the number of lanes that count: the others read as zero and are not written, so
one loop body serves any dim. Positions count elements of the array.
"""

import operator

from llvmlite import ir

# Why private parts of numba (`numba.core`): the public `numba.extending` has no vector type. It can register a type of
# our own, but its `@overload` can only give `+` a body in Python, and there is no Python for "add sixteen lanes". So
# the typing rule (AbstractTemplate, infer_global) and the LLVM instruction (lower_builtin) of each operator are
# registered the way numba registers its own. pyproject.toml bounds numba's version for that reason.
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import models, register_model

from persia_cli.kernels.toolchain.intrinsics import ARRAY, I32, I64, address, call, instruction, unaligned

LANES = 16
I16, FLOAT = ir.IntType(16), ir.FloatType()
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES)
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
            if len(arguments) == 2 and all(isinstance(argument, F32x16) for argument in arguments):
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


def _first(builder, lanes):
    """Return the mask of the first `lanes` lanes."""
    return builder.icmp_signed("<", NUMBERS, spread(builder, builder.trunc(lanes, I32), INTS))


def read_lanes(builder, data, at, lanes, kind, suffix, align):
    """Read a vector of `kind` from data[at]; all sixteen lanes, or the first alone, are one unmasked load."""
    pointer = address(builder, data, at, kind)
    result = cgutils.alloca_once(builder, kind)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            value = builder.load(pointer)
            value.align = align
            builder.store(value, result)
        with part, builder.if_else(builder.icmp_signed("==", lanes, I64(1))) as (one, some):
            # A masked load waits for stores to any of the sixteen, such as those to the row before.
            with one:
                value = builder.load(address(builder, data, at, kind.element))
                value.align = align
                builder.store(builder.insert_element(kind(None), value, I32(0)), result)
            with some:
                mask, nothing = _first(builder, lanes), kind(None)
                masked = call(builder, f"llvm.masked.load.{suffix}.p0", kind, pointer, I32(align), mask, nothing)
                builder.store(masked, result)
    return builder.load(result)


def write_lanes(builder, data, at, value, lanes, suffix, align):
    """Write a vector to data[at]; all sixteen lanes, or the first alone, are one unmasked store."""
    pointer = address(builder, data, at, value.type)
    with builder.if_else(builder.icmp_signed(">=", lanes, I64(LANES)), likely=True) as (full, part):
        with full:
            builder.store(value, pointer).align = align
        with part, builder.if_else(builder.icmp_signed("==", lanes, I64(1))) as (one, some):
            with one:
                first = builder.extract_element(value, I32(0))
                builder.store(first, address(builder, data, at, first.type)).align = align
            with some:
                mask, nothing = _first(builder, lanes), ir.VoidType()
                call(builder, f"llvm.masked.store.{suffix}.p0", nothing, value, pointer, I32(align), mask)


# float32 in memory.


@instruction(f32x16, ARRAY, types.uintp, types.int64)
def load(builder, data, at, lanes):
    """Return float32 lanes from data[at]."""
    return read_lanes(builder, data, at, lanes, FLOATS, "v16f32", 4)


@instruction(types.void, ARRAY, types.uintp, f32x16, types.int64)
def store(builder, data, at, value, lanes):
    """Write float32 lanes to data[at]."""
    write_lanes(builder, data, at, value, lanes, "v16f32", 4)


@instruction(types.float32, ARRAY, types.uintp)
def load_scalar(builder, data, at):
    """Return one float32 that begins at data[at] of an array of any dtype, aligned or not."""
    return unaligned(builder, data, at, FLOAT)


@instruction(types.void, ARRAY, types.uintp, types.float32)
def store_scalar(builder, data, at, value):
    """Write one float32 to the position of data[at], aligned or not."""
    builder.store(value, address(builder, data, at, FLOAT)).align = 1


# Between lanes.


@instruction(f32x16, types.float32)
def splat(builder, scalar):
    """Return the scalar in all lanes."""
    return spread(builder, scalar, FLOATS)


@instruction(types.float32, f32x16)
def total(builder, value):
    """Return the sum of the lanes, added pairwise and always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        numbers = ir.VectorType(I32, width)
        low, high = (ir.Constant(numbers, list(range(at, at + width))) for at in (0, width))
        value = builder.fadd(builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high))
    return builder.extract_element(value, I32(0))


@instruction(f32x16, f32x16)
def square_root(builder, value):
    """Return the square root of each lane."""
    return call(builder, "llvm.sqrt.v16f32", FLOATS, value)


@instruction(f32x16, f32x16)
def absolute(builder, value):
    """Return the absolute value of each lane."""
    return call(builder, "llvm.fabs.v16f32", FLOATS, value)


@instruction(f32x16, f32x16, f32x16)
def smaller(builder, one, other):
    """Return the smaller value per lane; of NaN and a number, the number."""
    return call(builder, "llvm.minnum.v16f32", FLOATS, one, other)


@instruction(f32x16, f32x16, f32x16)
def greater(builder, one, other):
    """Return the greater value per lane; of NaN and a number, the number."""
    return call(builder, "llvm.maxnum.v16f32", FLOATS, one, other)


@instruction(f32x16, f32x16, f32x16)
def with_sign_of(builder, one, other):
    """Return the lanes of `one` with the signs of `other`."""
    return call(builder, "llvm.copysign.v16f32", FLOATS, one, other)


@instruction(types.boolean, f32x16)
def finite(builder, value):
    """Return True if no lane is NaN or infinite."""
    exponents = builder.and_(builder.bitcast(value, INTS), all_lanes(INTS, EXPONENT))
    bad = builder.icmp_unsigned("==", exponents, all_lanes(INTS, EXPONENT))
    return builder.icmp_unsigned("==", builder.bitcast(bad, I16), I16(0))


@instruction(f32x16, f32x16, f32x16, f32x16)
def where_zero(builder, value, one, other):
    """Return the lanes of `one` where the value is 0, of `other` elsewhere."""
    return builder.select(builder.fcmp_ordered("==", value, FLOATS(None)), one, other)


def _magnitude(builder, value):
    """Return the bits of absolute values: as integers they are in the order of the values, with NaN above all."""
    return builder.and_(builder.bitcast(value, INTS), all_lanes(INTS, MAGNITUDE))


@instruction(f32x16, f32x16, f32x16)
def greater_magnitude(builder, one, other):
    """Return the greater absolute value per lane; NaN is greater than anything."""
    greatest = call(builder, "llvm.umax.v16i32", INTS, _magnitude(builder, one), _magnitude(builder, other))
    return builder.bitcast(greatest, FLOATS)


@instruction(types.float32, f32x16)
def greatest_magnitude(builder, value):
    """Return the greatest absolute value of all lanes; NaN is greater than anything."""
    greatest = call(builder, "llvm.vector.reduce.umax.v16i32", I32, _magnitude(builder, value))
    return builder.bitcast(greatest, FLOAT)
