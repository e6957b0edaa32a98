"""The encoding of messages as frames and back, with full validation.

Frames are [kind byte and token, header, raw array, raw array, ...]. A message without the token of the job is refused
before any of it is decoded. The header is msgpack of (request number, fields of the message, dtype and shape of each
array, loan). Arrays that the loan covers lie in memory that sender and receiver share; the others are frames.
"""

import hmac
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np
import zmq

from persia_cli.errors import WireError
from persia_cli.wire.limits import BATCH_PART, LIMITS
from persia_cli.wire.loans import Array, Loan, SharedMemory, StaleLoan
from persia_cli.wire.messages import BY_KIND
from persia_cli.wire.parts import Count, Message

MAX_FRAMES = BATCH_PART.arrays + 2
NO_TOKEN = b""
"""Token of frames that do not go to another replica."""
ENCODED_ALIGNMENT = 4
"""Alignment of byte arrays: encoded rows are read as float32 in place."""

Frame = bytes | memoryview | zmq.Frame
ArrayHead = tuple[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=BATCH_PART.nbytes)], ...]]
ArrayHeads = Annotated[list[ArrayHead], msgspec.Meta(max_length=BATCH_PART.arrays)]

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: Mapping[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(tuple[Count, kind, ArrayHeads, Loan | None])  # type: ignore[valid-type]
    for kind in BY_KIND.values()
}
_NUMBER_DECODER = msgspec.msgpack.Decoder(tuple[Count, msgspec.Raw, msgspec.Raw, msgspec.Raw])


def message_bytes(message: Message) -> int:
    """Return the encoded size of a message without arrays."""
    return len(_ENCODER.encode(message))


class MalformedMessage(WireError):  # noqa: N818 - the name says what it is
    """Frames that are not a valid message; `request` is its request number if that can be read."""

    def __init__(self, problem: str, request: int | None = None) -> None:
        super().__init__(problem)
        self.request = request


class ForeignMessage(MalformedMessage):
    """A message without the token of the job; the rest of it was not read, and it gets no answer."""


def encode(
    request: int,
    message: Message,
    arrays: Sequence[Array] = (),
    loan: Loan | None = None,
    token: bytes = NO_TOKEN,
) -> list[bytes | memoryview]:
    """Return the frames of a message; C-contiguous arrays are not copied but become frames themselves.

    Arrays that `loan` lends are not in the frames. Raises MalformedMessage if the arrays are not those that the message
    declares, or if it is larger than the limit of its kind.
    """
    kind = type(message)
    heads = [(array.dtype.str, array.shape) for array in arrays]
    header = _ENCODER.encode((request, message, heads, loan))
    _check_size(kind, len(header), len(arrays), sum([array.nbytes for array in arrays]))
    _check_arrays(kind, heads)
    framed = arrays if loan is None else [a for a, place in zip(arrays, loan.places, strict=True) if place is None]
    raw = [np.ascontiguousarray(array).data if array.size else b"" for array in framed]
    return [bytes((kind.KIND,)) + token, header, *raw]


def decode(
    frames: Sequence[Frame], memory: SharedMemory | None = None, token: bytes = NO_TOKEN
) -> tuple[int, Message, list[Array]]:
    """Return request number, message and arrays; raises MalformedMessage, and nothing else, whatever the frames hold.

    It raises ForeignMessage, a kind of MalformedMessage, if the token of the frames is not `token`.

    Arrays are writable views of the frames or of `memory`. Those that are not aligned for their dtype (bytes: for
    float32), as happens with small frames, are copies. Views may be the sender's own memory, so the receiver must not
    write to them.
    """
    kind, header = _open(frames, token)
    try:
        request, message, heads, loan = _DECODERS[kind].decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedMessage(
            f"the header of {kind.__name__} cannot be read: {error}", _legible_number(header)
        ) from None
    try:
        _check_arrays(kind, heads)
        lent: list[Array | None] = [None] * len(heads) if loan is None else _borrow(kind, loan, heads, memory)
        framed = sum(array is None for array in lent)
        if framed != len(frames) - 2:
            raise MalformedMessage(f"{kind.__name__} declares {framed} arrays but has {len(frames) - 2}")
        rest = iter(frames[2:])
        arrays = [
            _view(head, next(rest)) if array is None else _aligned(array)
            for head, array in zip(heads, lent, strict=True)
        ]
    except StaleLoan as error:
        raise MalformedMessage(str(error)) from None  # without a number: nobody waits for an answer to it
    except WireError as error:
        raise MalformedMessage(str(error), request) from None
    return request, message, arrays


def _borrow(
    kind: type[Message], loan: Loan, heads: Sequence[ArrayHead], memory: SharedMemory | None
) -> list[Array | None]:
    if memory is None:
        raise MalformedMessage(
            f"{kind.__name__} uses shared memory, but this connection has none; set cluster.shared_memory=false"
        )
    return memory.borrow(loan, heads)


def _open(frames: Sequence[Frame], token: bytes) -> tuple[type[Message], memoryview]:
    """Return the type of the message and its header; checks the token first, and then all sizes."""
    first = _bytes_of(frames[0]) if frames else memoryview(b"")
    # The time of the comparison must not depend on how many bytes of the token are right.
    if not hmac.compare_digest(first[1:], token):
        raise ForeignMessage("the message does not have the token of this job")
    if len(first) != 1 + len(token) or len(frames) < 2:
        raise MalformedMessage(f"the message is incomplete: it has {len(frames)} frames, and at least 2 are needed")
    views = [_bytes_of(frame) for frame in frames[1:]]
    kind, header = BY_KIND.get(first[0]), views[0]
    if kind is None:
        raise MalformedMessage(f"{first[0]:#04x} is not a known kind of message", _legible_number(header))
    try:
        _check_size(kind, len(header), len(views) - 1, sum([len(view) for view in views[1:]]))
    except MalformedMessage as error:
        readable = len(header) <= LIMITS[kind].header
        raise MalformedMessage(str(error), _legible_number(header) if readable else None) from None
    return kind, header


def _check_size(kind: type[Message], header: int, arrays: int, nbytes: int) -> None:
    limit = LIMITS[kind]
    if header > limit.header or arrays > limit.arrays or nbytes > limit.nbytes:
        raise MalformedMessage(
            f"{kind.__name__} has a header of {header:,} bytes and {arrays:,} arrays of {nbytes:,} bytes; "
            f"the limits are {limit.header:,} bytes, {limit.arrays:,} arrays and {limit.nbytes:,} bytes"
            + ("; use a smaller train.batch_size" if limit.nbytes else "")
        )


def _bytes_of(frame: Frame) -> memoryview:
    return frame.buffer if isinstance(frame, zmq.Frame) else memoryview(frame)


def _legible_number(header: memoryview) -> int | None:
    try:
        request: int = _NUMBER_DECODER.decode(header)[0]
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError):
        return None
    return request


def _check_arrays(kind: type[Message], heads: Sequence[ArrayHead]) -> None:
    """Raise MalformedMessage unless dtypes, dimensions and named sizes are those that the message declares."""
    shapes = [shape for _, shape in heads]
    for at, axis, first, first_axis in _equal_sizes(kind, tuple([(dtype, len(shape)) for dtype, shape in heads])):
        if shapes[at][axis] != shapes[first][first_axis]:
            raise MalformedMessage(
                f"array {at} of {kind.__name__} has size {shapes[at][axis]} where another has "
                f"{shapes[first][first_axis]}"
            )


@lru_cache(maxsize=1024)
def _equal_sizes(kind: type[Message], arrays: tuple[tuple[str, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Return the pairs of sizes that must be equal, as (array, axis, array, axis), for arrays of (dtype, dimensions).

    Raises MalformedMessage if the message does not declare such arrays.
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
    """Match the declared arrays once, from arrays[at] on; returns the position behind the last one."""
    first: dict[str, tuple[int, int]] = {}
    for spec in kind.ARRAYS:
        if at >= len(arrays):
            raise MalformedMessage(f"{kind.__name__} does not have its array '{spec.name}'")
        if arrays[at] != (spec.dtype, spec.ndim):
            dtype, ndim = arrays[at]
            raise MalformedMessage(
                f"array '{spec.name}' of {kind.__name__} must be {spec.dtype} with {spec.ndim} dimensions, "
                f"not {dtype[:20]} with {ndim}"
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
    """Return the array in a frame, aligned for its dtype."""
    dtype, shape = np.dtype(head[0]), head[1]
    view = _bytes_of(frame)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise MalformedMessage(f"an array of type {head[0]} and shape {shape} has {view.nbytes} bytes")
    if not view.nbytes:
        return np.empty(shape, dtype)
    return _aligned(np.frombuffer(view, dtype).reshape(shape))


def _aligned(array: Array) -> Array:
    """Return the array, or a copy if it is not writable or not aligned."""
    if not array.flags.writeable or not array.flags.aligned:
        return array.copy()
    misplaced = array.itemsize == 1 and array.__array_interface__["data"][0] % ENCODED_ALIGNMENT
    return array.copy() if misplaced else array
