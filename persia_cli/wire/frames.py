"""Messages to frames and back: [kind byte, header, raw array, raw array, ...], every claim of a header checked.

The header is msgpack of (request number, fields of the message, dtype and shape of each array, loan). What is lent of
the arrays lies in memory that sender and receiver share; the others are frames.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
import zmq

from persia_cli.errors import WireError
from persia_cli.wire.loans import Array, Loan, SharedMemory, StaleLoan
from persia_cli.wire.messages import BY_KIND, Count, Message

MAX_MESSAGE_BYTES = 1 << 30
"""All frames of one message together."""
MAX_HEADER_BYTES = 16 << 20
MAX_ARRAYS = 4096
MAX_FRAMES = MAX_ARRAYS + 2
ENCODED_ALIGNMENT = 4
"""Address of bytes is a multiple of this: those of encoded rows are read as float32 where they lie."""

Frame = bytes | memoryview | zmq.Frame
ArrayHead = tuple[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_MESSAGE_BYTES)], ...]]
ArrayHeads = Annotated[list[ArrayHead], msgspec.Meta(max_length=MAX_ARRAYS)]

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: Mapping[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(tuple[Count, kind, ArrayHeads, Loan | None])  # type: ignore[valid-type]
    for kind in BY_KIND.values()
}
_NUMBER_DECODER = msgspec.msgpack.Decoder(tuple[Count, msgspec.Raw, msgspec.Raw, msgspec.Raw])


class MalformedMessage(WireError):  # noqa: N818 - it says what it is
    """Frames that are no message, or not the message they claim to be; `request` is its number if that is legible."""

    def __init__(self, problem: str, request: int | None = None) -> None:
        super().__init__(problem)
        self.request = request


def encode(
    request: int, message: Message, arrays: Sequence[Array] = (), loan: Loan | None = None
) -> list[bytes | memoryview]:
    """Frames of a message; arrays that are C-contiguous are not copied but become frames themselves.

    What `loan` lends of the arrays is in none. Raises MalformedMessage if the arrays are not those that the message
    declares, or too large.
    """
    kind = type(message)
    heads = [(array.dtype.str, array.shape) for array in arrays]
    header = _ENCODER.encode((request, message, heads, loan))
    nbytes = len(header) + sum([array.nbytes for array in arrays])
    if len(arrays) > MAX_ARRAYS or len(header) > MAX_HEADER_BYTES or nbytes > MAX_MESSAGE_BYTES:
        raise MalformedMessage(
            f"{kind.__name__} of {nbytes} bytes in {len(arrays)} arrays is over the limit of {MAX_MESSAGE_BYTES} bytes "
            f"({MAX_HEADER_BYTES} in the header) and {MAX_ARRAYS} arrays; use smaller batches"
        )
    _check_arrays(kind, heads)
    framed = arrays if loan is None else [a for a, place in zip(arrays, loan.places, strict=True) if place is None]
    raw = [np.ascontiguousarray(array).data if array.size else b"" for array in framed]
    return [bytes((kind.KIND,)), header, *raw]


def decode(frames: Sequence[Frame], memory: SharedMemory | None = None) -> tuple[int, Message, list[Array]]:
    """Request number, message and arrays; raises MalformedMessage, and nothing else, whatever the frames hold.

    Arrays are writable views of the frames or of `memory`, or copies where they are not aligned for their dtype (bytes:
    for float32), as small frames often are not. They may be the sender's own memory, so the receiver must not write
    into them.
    """
    kind, header = _open(frames)
    try:
        request, message, heads, loan = _DECODERS[kind].decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedMessage(f"bad header of {kind.__name__}: {error}", _legible_number(header)) from None
    try:
        _check_arrays(kind, heads)
        lent: list[Array | None] = [None] * len(heads) if loan is None else _borrow(kind, loan, heads, memory)
        framed = sum(array is None for array in lent)
        if framed != len(frames) - 2:
            raise MalformedMessage(f"{kind.__name__} announces {framed} arrays and brings {len(frames) - 2}")
        rest = iter(frames[2:])
        arrays = [
            _view(head, next(rest)) if array is None else _aligned(array)
            for head, array in zip(heads, lent, strict=True)
        ]
    except StaleLoan as error:
        raise MalformedMessage(str(error)) from None  # nobody waits for an answer to it
    except WireError as error:
        raise MalformedMessage(str(error), request) from None
    return request, message, arrays


def _borrow(
    kind: type[Message], loan: Loan, heads: Sequence[ArrayHead], memory: SharedMemory | None
) -> list[Array | None]:
    if memory is None:
        raise MalformedMessage(f"{kind.__name__} lends memory where none is shared; set cluster.shared_memory=false")
    return memory.borrow(loan, heads)


def _open(frames: Sequence[Frame]) -> tuple[type[Message], memoryview]:
    """The message type by the kind byte, and the header; sizes checked."""
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise MalformedMessage(f"{len(frames)} frames are no message")
    views = [_bytes_of(frame) for frame in frames]
    if views[0].nbytes != 1:
        raise MalformedMessage(f"{views[0].nbytes} bytes are no kind of message")
    if views[1].nbytes > MAX_HEADER_BYTES or sum(view.nbytes for view in views) > MAX_MESSAGE_BYTES:
        raise MalformedMessage("oversized message")
    kind = BY_KIND.get(views[0][0])
    if kind is None:
        raise MalformedMessage(f"unknown kind of message {views[0][0]:#04x}", _legible_number(views[1]))
    return kind, views[1]


def _bytes_of(frame: Frame) -> memoryview:
    return frame.buffer if isinstance(frame, zmq.Frame) else memoryview(frame)


def _legible_number(header: memoryview) -> int | None:
    try:
        request: int = _NUMBER_DECODER.decode(header)[0]
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError):
        return None
    return request


def _check_arrays(kind: type[Message], heads: Sequence[ArrayHead]) -> None:
    """Hold dtypes, dimensions and named sizes against what the message declares."""
    shapes = [shape for _, shape in heads]
    for at, axis, first, first_axis in _equal_sizes(kind, tuple([(dtype, len(shape)) for dtype, shape in heads])):
        if shapes[at][axis] != shapes[first][first_axis]:
            raise MalformedMessage(
                f"array {at} of {kind.__name__} has size {shapes[at][axis]} where another has "
                f"{shapes[first][first_axis]}"
            )


@lru_cache(maxsize=1024)
def _equal_sizes(kind: type[Message], arrays: tuple[tuple[str, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Which sizes must be equal where arrays have these dtypes and numbers of dimensions: (array, axis, array, axis).

    Raises MalformedMessage if the message has no such arrays.
    """
    equal: list[tuple[int, int, int, int]] = []
    at = _match_round(kind, arrays, 0, equal) if arrays or not kind.PER_GROUP else 0
    while kind.PER_GROUP and at < len(arrays):
        at = _match_round(kind, arrays, at, equal)
    if at != len(arrays):
        raise MalformedMessage(f"{kind.__name__} has {len(arrays) - at} arrays too many")
    return tuple(equal)


def _match_round(
    kind: type[Message], arrays: Sequence[tuple[str, int]], at: int, equal: list[tuple[int, int, int, int]]
) -> int:
    """Match the declared arrays once, from arrays[at] on; returns where they end."""
    first: dict[str, tuple[int, int]] = {}
    for spec in kind.ARRAYS:
        if at >= len(arrays):
            raise MalformedMessage(f"{kind.__name__} lacks its array '{spec.name}'")
        if arrays[at] != (spec.dtype, spec.ndim):
            dtype, ndim = arrays[at]
            raise MalformedMessage(
                f"array '{spec.name}' of {kind.__name__} is {spec.dtype} of {spec.ndim} dimensions, "
                f"not {dtype[:20]} of {ndim}"
            )
        while at < len(arrays) and arrays[at] == (spec.dtype, spec.ndim):
            for axis, dim in enumerate(spec.dims.split()):
                if dim != "*" and first.setdefault(dim, (at, axis)) != (at, axis):
                    equal.append((at, axis, *first[dim]))
            at += 1
            if not spec.many:
                break
    return at


def _view(head: ArrayHead, frame: Frame) -> Array:
    """The array in a frame, aligned for its dtype."""
    dtype, shape = np.dtype(head[0]), head[1]
    view = _bytes_of(frame)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise MalformedMessage(f"{view.nbytes} bytes are no array {head[0]} of shape {shape}")
    if not view.nbytes:
        return np.empty(shape, dtype)
    return _aligned(np.frombuffer(view, dtype).reshape(shape))


def _aligned(array: Array) -> Array:
    """The array, or a copy where it is not writable or not aligned."""
    if not array.flags.writeable or not array.flags.aligned:
        return array.copy()
    misplaced = array.itemsize == 1 and array.__array_interface__["data"][0] % ENCODED_ALIGNMENT
    return array.copy() if misplaced else array
