"""Instructions that numba does not offer by itself; they are inlined into the kernels that use them."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, position):
    """Start to load the cache line of array[position] of a flat array, without waiting for it."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        number, byte = ir.IntType(32), ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        read, keep, data_cache = number(0), number(3), number(1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@intrinsic
def load64(typing_context, data, position):
    """Read 8 bytes of a flat array of bytes from `position` on, aligned or not, as a little-endian uint64."""

    def generate(context, builder, signature, arguments):
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(start, [arguments[1]])
        word = builder.load(builder.bitcast(address, ir.PointerType(ir.IntType(64))))
        word.align = 1
        return word

    return types.uint64(data, types.uint64), generate


@intrinsic
def bits_of(typing_context, value):
    """Return the bits of a float64 as uint64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.uint64(types.float64), generate
