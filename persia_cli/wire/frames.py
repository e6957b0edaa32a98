"""Messages to frames and back: [kind byte, header, raw array, raw array, ...], every claim of a header checked.

The header is msgpack of (request number, fields of the message, dtype and shape of each array).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.wire.messages import BY_KIND, ArraySpec, Count, Message

MAX_MESSAGE_BYTES = 1 << 30
"""All frames of one message together."""
MAX_HEADER_BYTES = 16 << 20
MAX_ARRAYS = 4096
MAX_FRAMES = MAX_ARRAYS + 2
ENCODED_ALIGNMENT = 4
"""Address of bytes is a multiple of this: those of encoded rows are read as float32 where they lie."""

Array = NDArray[Any]
Frame = bytes | memoryview | zmq.Frame
ArrayHead = tuple[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_MESSAGE_BYTES)], ...]]
ArrayHeads = Annotated[list[ArrayHead], msgspec.Meta(max_length=MAX_ARRAYS)]

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: Mapping[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(tuple[Count, kind, ArrayHeads])  # type: ignore[valid-type]
    for kind in BY_KIND.values()
}
_NUMBER_DECODER = msgspec.msgpack.Decoder(tuple[Count, msgspec.Raw, msgspec.Raw])


class MalformedMessage(WireError):  # noqa: N818 - it says what it is
    """Frames that are no message, or not the message they claim to be; `request` is its number if that is legible."""

    def __init__(self, problem: str, request: int | None = None) -> None:
        super().__init__(problem)
        self.request = request


def encode(request: int, message: Message, arrays: Sequence[Array] = ()) -> list[bytes | memoryview]:
    """Frames of a message; arrays that are C-contiguous are not copied but become frames themselves.

    Raises MalformedMessage if the arrays are not those that the message declares, or too large.
    """
    kind = type(message)
    heads = [(array.dtype.str, array.shape) for array in arrays]
    header = _ENCODER.encode((request, message, heads))
    nbytes = len(header) + sum(array.nbytes for array in arrays)
    if len(arrays) > MAX_ARRAYS or len(header) > MAX_HEADER_BYTES or nbytes > MAX_MESSAGE_BYTES:
        raise MalformedMessage(
            f"{kind.__name__} of {nbytes} bytes in {len(arrays)} arrays is over the limit of {MAX_MESSAGE_BYTES} bytes "
            f"({MAX_HEADER_BYTES} in the header) and {MAX_ARRAYS} arrays; use smaller batches"
        )
    _check_arrays(kind, heads)
    raw = [np.ascontiguousarray(array).data if array.size else b"" for array in arrays]
    return [bytes((kind.KIND,)), header, *raw]


def decode(frames: Sequence[Frame]) -> tuple[int, Message, list[Array]]:
    """Request number, message and arrays; raises MalformedMessage, and nothing else, whatever the frames hold.

    Arrays are writable views of the frames, or copies where a frame is not aligned for its dtype (bytes: for float32),
    as small ones often are not. Over inproc they may be the sender's own memory, so the receiver must not write into
    them.
    """
    kind, header = _open(frames)
    try:
        request, message, heads = _DECODERS[kind].decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedMessage(f"bad header of {kind.__name__}: {error}", _legible_number(header)) from None
    try:
        _check_arrays(kind, heads)
        if len(heads) != len(frames) - 2:
            raise MalformedMessage(f"{kind.__name__} announces {len(heads)} arrays and brings {len(frames) - 2}")
        arrays = [_view(head, frame) for head, frame in zip(heads, frames[2:], strict=True)]
    except MalformedMessage as error:
        raise MalformedMessage(str(error), request) from None
    return request, message, arrays


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
    at = 0
    if kind.PER_GROUP:
        while at < len(heads):
            at = _check_round(kind, heads, at)
    else:
        at = _check_round(kind, heads, at)
    if at != len(heads):
        raise MalformedMessage(f"{kind.__name__} has {len(heads) - at} arrays too many")


def _check_round(kind: type[Message], heads: Sequence[ArrayHead], at: int) -> int:
    """Check the declared arrays once, from heads[at] on; returns where they end."""
    sizes: dict[str, int] = {}
    for spec in kind.ARRAYS:
        if at >= len(heads):
            raise MalformedMessage(f"{kind.__name__} lacks its array '{spec.name}'")
        if not _fits(spec, heads[at]):
            dtype, shape = heads[at]
            raise MalformedMessage(
                f"array '{spec.name}' of {kind.__name__} is {spec.dtype} of {spec.ndim} dimensions, "
                f"not {dtype[:20]} of shape {shape[:8]}"
            )
        while at < len(heads) and _fits(spec, heads[at]):
            _check_sizes(kind, spec, heads[at][1], sizes)
            at += 1
            if not spec.many:
                break
    return at


def _fits(spec: ArraySpec, head: ArrayHead) -> bool:
    return head[0] == spec.dtype and len(head[1]) == spec.ndim


def _check_sizes(kind: type[Message], spec: ArraySpec, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    for dim, size in zip(spec.dims.split(), shape, strict=True):
        if dim != "*" and sizes.setdefault(dim, size) != size:
            raise MalformedMessage(
                f"array '{spec.name}' of {kind.__name__} has size {size} where another has {sizes[dim]} ({dim})"
            )


def _view(head: ArrayHead, frame: Frame) -> Array:
    """The array in a frame, aligned for its dtype."""
    dtype, shape = np.dtype(head[0]), head[1]
    view = _bytes_of(frame)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise MalformedMessage(f"{view.nbytes} bytes are no array {head[0]} of shape {shape}")
    if not view.nbytes:
        return np.empty(shape, dtype)
    array = np.frombuffer(view, dtype).reshape(shape)
    if not array.flags.writeable or not array.flags.aligned:
        return array.copy()
    misplaced = dtype.itemsize == 1 and array.ctypes.data % ENCODED_ALIGNMENT
    return array.copy() if misplaced else array
