"""Instructions that numba does not offer; they are inlined into the kernels that use them."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BYTE, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
ARRAY = None
"""Stands for a flat array of any dtype among the types of an instruction's arguments."""


def instruction(result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an instruction for kernels of a function that generates its LLVM code.

    The function takes llvmlite's IRBuilder and an LLVM value for each argument, whose numba types are `kinds`; for an
    ARRAY it is the address of element 0. It returns the value of the result, which is dropped if `result` is void.
    """

    def register(generate: Callable[..., Any]) -> Any:
        def define(typing_context: Any, *given: Any) -> Any:
            def lower(context: Any, builder: Any, types_: Any, values: Any) -> Any:
                arguments = [
                    context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
                    for kind, value in zip(types_.args, values, strict=True)
                ]
                value = generate(builder, *arguments)
                return context.get_dummy_value() if result is types.void else value

            return result(*(type_ if kind is ARRAY else kind for kind, type_ in zip(kinds, given, strict=True))), lower

        # numba reads the names of an intrinsic's arguments from the signature, and the first is always the context.
        names = list(signature(generate).parameters)[1:]
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("typing_context", *names)]
        define.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        define.__name__, define.__doc__ = generate.__name__, generate.__doc__
        return intrinsic(define)

    return register


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call one of LLVM's intrinsic functions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def address(builder: Any, data: Any, at: Any, kind: Any) -> Any:
    """Return the address of element `at` of an array whose element 0 is at `data`, as that of an LLVM type."""
    return builder.bitcast(builder.gep(data, [at]), ir.PointerType(kind))


def unaligned(builder: Any, data: Any, at: Any, kind: Any) -> Any:
    """Read a value of an LLVM type from element `at` of an array, at any byte address."""
    value = builder.load(address(builder, data, at, kind))
    value.align = 1
    return value


@instruction(types.void, ARRAY, types.uint64)
def prefetch(builder, data, at):
    """Start to load the cache line of data[at], without waiting for it."""
    read, keep, data_cache = I32(0), I32(3), I32(1)
    return call(builder, "llvm.prefetch.p0", ir.VoidType(), address(builder, data, at, BYTE), read, keep, data_cache)


@instruction(types.void, ARRAY, types.uint64)
def prefetch_to_l2(builder, data, at):
    """Start to load the cache line of data[at] into the second-level cache, which allows more pending loads than L1."""
    read, keep, data_cache = I32(0), I32(2), I32(1)
    return call(builder, "llvm.prefetch.p0", ir.VoidType(), address(builder, data, at, BYTE), read, keep, data_cache)


@instruction(types.uint64, ARRAY, types.uint64)
def load64(builder, data, at):
    """Read 8 bytes of an array of bytes from data[at] on, aligned or not, as a little-endian uint64."""
    return unaligned(builder, data, at, I64)


@instruction(types.uint64, types.uint64)
def lowest_bit(builder, bits):
    """Return the number of the lowest bit that is set; `bits` must not be 0."""
    undefined_for_zero = ir.IntType(1)(1)
    return call(builder, "llvm.cttz.i64", I64, bits, undefined_for_zero)


@instruction(types.uint64, types.uint64)
def bits_set(builder, bits):
    """Return the number of set bits."""
    return call(builder, "llvm.ctpop.i64", I64, bits)


@instruction(types.int64, types.int32, ARRAY, types.uint64, types.uint64, types.int64)
def read_file(builder, file, data, at, nbytes, offset):
    """Read bytes of a file from an offset on into an array, from data[at] on; return their number, -1 on an error."""
    return call(builder, "pread", I64, file, address(builder, data, at, BYTE), nbytes, offset)
