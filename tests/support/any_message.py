"""Any message with any arrays that it may have, for tests of encoding and transport."""

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import msgspec
import numpy as np

from persia_cli.wire.frames import parts_of
from persia_cli.wire.message import Message, dtype_of

COUNTS = st.integers(0, 2**63 - 1)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text("aZ/ \0é€\U0001f600"),
    bytes: st.binary(),
    type(None): st.none(),
}
MATCHING = {
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": st.just("dense.safetensors"),
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?$": st.sampled_from(["dense", "0f0f/dense"]),
    "^[0-9a-f]{64}$": st.just("0f" * 32),
    "^[0-9a-f]{32}$": st.just("0f" * 16),
}


def values(declared: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a header field may have."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return annotated(*args)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin in (list, tuple):
        return st.lists(values(args[0]), max_size=3).map(origin)
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return st.builds(declared, *[values(field.type) for field in msgspec.structs.fields(declared)])
    return PLAIN[declared]


def annotated(declared: Any, meta: msgspec.Meta) -> st.SearchStrategy[Any]:
    if declared is str:
        return MATCHING[meta.pattern]
    if declared is float:
        return st.floats(meta.ge, meta.le)
    return st.integers(meta.ge, 2**63 - 1 if meta.le is None else meta.le)


Draw = Callable[[st.SearchStrategy[Any]], Any]


def arrays(draw: Draw, declared: Any, sizes: dict[str, int]) -> Any:
    """Any value of a field of arrays; `sizes` are those of named dimensions so far."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is list:
        return [arrays(draw, args[0], sizes) for _ in range(draw(st.integers(0, 3)))]
    if origin in (Union, types.UnionType):
        return arrays(draw, args[0], sizes) if draw(st.booleans()) else None
    if hasattr(declared, "_fields"):
        own: dict[str, int] = {}
        hints = get_type_hints(declared, include_extras=True)
        return declared(*[arrays(draw, hints[name], own) for name in declared._fields])
    shape = [
        free if dim == "*" else sizes.setdefault(dim, free)
        for dim in args[1].split()
        for free in [draw(st.integers(0, 5))]
    ]
    dtype = dtype_of(args[0])
    assert dtype is not None
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return np.frombuffer(random.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def has_arrays(declared: Any) -> bool:
    return (
        dtype_of(declared) is not None
        or hasattr(declared, "_fields")
        or any(map(has_arrays, [*get_args(declared), get_origin(declared)] if get_origin(declared) else []))
    )


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Any message of a kind with any arrays that it may have."""
    sizes: dict[str, int] = {}
    return kind(
        *[
            arrays(draw, field.type, sizes) if has_arrays(field.type) else draw(values(field.type))
            for field in msgspec.structs.fields(kind)
        ]
    )


def raw(frames: list[bytes | memoryview]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def plain(value: Any) -> Any:
    """A message, block or array as a value for `==`: arrays by dtype, shape and bits."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, msgspec.Struct):
        return type(value), [plain(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, (list, tuple)):
        return type(value), [plain(each) for each in value]
    return value


def same(message: Message, other: Message) -> bool:
    """Return True if both are equal to the bit, including shapes and dtypes of arrays."""
    return bool(plain(message) == plain(other))


def nbytes(message: Message) -> list[int]:
    """The sizes of a message's arrays."""
    return [array.nbytes for array in parts_of(message).arrays]
