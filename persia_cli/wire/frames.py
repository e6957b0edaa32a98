"""The encoding of messages as frames and back, with full validation.

Frames are [kind byte, header, raw array, raw array, ...]. The header is msgpack of (request number, fields of the
message, shapes of its arrays, loan). Arrays that the loan covers lie in memory that sender and receiver share; the
others are frames.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import job_messages, messages
from persia_cli.wire.message import BATCH_PART, Array, Count, Message, MessageCodec, Shape
from persia_cli.wire.shared_memory import Loan, SharedMemory, StaleLoan, Whole

MAX_FRAMES = BATCH_PART.arrays + 2
ENCODED_ALIGNMENT = 4
"""Alignment of byte arrays: encoded rows are read as float32 in place."""
BY_KIND: dict[int, type[Message]] = {
    kind.KIND: kind
    for module in (messages, job_messages)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and hasattr(kind, "KIND")
}
"""All kinds of messages by their first byte."""

Frame = bytes | memoryview | zmq.Frame

_ENCODER = msgspec.msgpack.Encoder()
_CODECS = {kind: MessageCodec(kind) for kind in BY_KIND.values()}


def _header_of(codec: MessageCodec) -> type[msgspec.Struct]:
    """Return the type of the header of one kind of messages, an array of four."""
    fields = [("request", Count), ("fields", codec.header), ("shapes", codec.shapes), ("loan", Loan | None)]
    return msgspec.defstruct("Header", fields, array_like=True, forbid_unknown_fields=True, frozen=True)


_DECODERS: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(_header_of(codec)) for kind, codec in _CODECS.items()
}
_NUMBER_DECODER = msgspec.msgpack.Decoder(tuple[Count, msgspec.Raw, msgspec.Raw, msgspec.Raw])


def message_bytes(message: Message) -> int:
    """Return the encoded size of a message without arrays."""
    return len(_ENCODER.encode(message))


def has_arrays(kind: type[Message]) -> bool:
    """Return True if messages of this kind have arrays."""
    return bool(_CODECS[kind].arrays)


class Received(NamedTuple):
    """A message that has arrived, and the number of its request."""

    request: int
    message: Message
    lent: int = 0
    """Bytes of its arrays that are in shared memory."""


class Parts(NamedTuple):
    """The parts from which a message is encoded."""

    fields: Any
    shapes: list[Any]
    arrays: list[Array]
    """All arrays of the message, in the order of their frames."""


def parts_of(message: Message) -> Parts:
    """Return the parts of a message; raises MalformedMessage if its arrays are not those that it declares."""
    try:
        return Parts(*_CODECS[type(message)].flatten(message))
    except WireError as error:
        raise MalformedMessage(f"{type(message).__name__}: {error}") from None


class MalformedMessage(WireError):  # noqa: N818 - the name describes the message
    """Frames that are not a valid message; `request` is its request number if that can be read."""

    def __init__(self, problem: str, request: int | None = None) -> None:
        super().__init__(problem)
        self.request = request


def encode(
    request: int,
    message: Message,
    loan: Loan | None = None,
    parts: Parts | None = None,
) -> list[bytes | memoryview]:
    """Return the frames of a message; C-contiguous arrays are not copied but become frames themselves.

    Arrays that `loan` lends are not in the frames; `parts` are those of the message, if they are known. Raises
    MalformedMessage if the arrays are not those that the message declares, or if it is larger than the limit of its
    kind.
    """
    kind = type(message)
    fields, shapes, arrays = parts or parts_of(message)
    header = _ENCODER.encode((request, fields, shapes, loan))
    _check_size(kind, len(header), len(arrays), sum([array.nbytes for array in arrays]))
    lent = [None] * len(arrays) if loan is None else loan.addresses
    framed = [array for array, address in zip(arrays, lent, strict=True) if address is None]
    raw = [np.ascontiguousarray(array).data if array.size else b"" for array in framed]
    return [bytes((kind.KIND,)), header, *raw]


def decode(frames: Sequence[Frame], memory: SharedMemory | None = None) -> tuple[int, Message]:
    """Return the request number and message of `read`."""
    return read(frames, memory)[:2]


def read(frames: Sequence[Frame], memory: SharedMemory | None = None) -> Received:
    """Return the content of the frames; raise MalformedMessage, and nothing else, for any invalid content.

    Arrays are writable views of the frames or of `memory`. Those that are not aligned for their dtype (bytes: for
    float32), as happens with small frames, are copies. Views may be the sender's own memory, so the receiver must not
    write to them.
    """
    kind, header = _open(frames)
    try:
        head = _DECODERS[kind].decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedMessage(
            f"the header of {kind.__name__} cannot be read: {error}", _legible_number(header)
        ) from None
    try:
        arrays = _Arrays(frames[2:], head.loan, memory)
        message = _CODECS[kind].restore(head.fields, head.shapes, arrays.next)
        arrays.check_all_read()
    except StaleLoan as error:
        raise MalformedMessage(str(error)) from None  # without a number: no client waits for an answer to it
    except WireError as error:
        raise MalformedMessage(f"{kind.__name__}: {error}", head.request) from None
    return Received(head.request, message, arrays.lent)


class _Arrays:
    """The arrays of a received message, read one after the other."""

    def __init__(self, frames: Sequence[Frame], loan: Loan | None, memory: SharedMemory | None) -> None:
        if loan is not None and memory is None:
            raise MalformedMessage(
                "the message uses shared memory, but this connection has none; set cluster.shared_memory=false"
            )
        self._frames, self._memory = list(reversed(frames)), memory
        self._addresses = None if loan is None else list(reversed(loan.addresses))
        self._borrowed = memory.borrow(loan) if loan is not None and memory is not None else None
        self._whole: Whole = {}
        self.lent = 0
        """Bytes of the arrays in shared memory that were read."""

    def next(self, dtype: np.dtype[Any], shape: Shape) -> Array:
        """Return the next array."""
        if self._addresses is not None and self._memory is not None and self._borrowed is not None:
            if not self._addresses:
                raise WireError("the message declares more arrays than its loan has")
            if (address := self._addresses.pop()) is not None:
                lent = self._memory.view(address, dtype, shape, self._borrowed, self._whole)
                self.lent += lent.nbytes
                # Segments begin at pages.
                return lent.copy() if address[1] % _alignment(dtype) else lent
        if not self._frames:
            raise WireError("the message declares more arrays than it has")
        return _view(dtype, shape, self._frames.pop())

    def check_all_read(self) -> None:
        """Raise WireError if the message has arrays that it does not declare."""
        left = len(self._frames) + len(self._addresses or ())
        if left:
            raise WireError(f"the message has {left} arrays that it does not declare")


def _open(frames: Sequence[Frame]) -> tuple[type[Message], memoryview]:
    """Return the type of the message and its header; check all sizes."""
    first = _bytes_of(frames[0]) if frames else memoryview(b"")
    if len(first) != 1 or len(frames) < 2:
        raise MalformedMessage("the message does not begin with one byte, its kind, and a header")
    views = [_bytes_of(frame) for frame in frames[1:]]
    kind, header = BY_KIND.get(first[0]), views[0]
    if kind is None:
        raise MalformedMessage(f"{first[0]:#04x} is not a known kind of message", _legible_number(header))
    try:
        _check_size(kind, len(header), len(views) - 1, sum([len(view) for view in views[1:]]))
    except MalformedMessage as error:
        readable = len(header) <= kind.LIMIT.header
        raise MalformedMessage(str(error), _legible_number(header) if readable else None) from None
    return kind, header


def _check_size(kind: type[Message], header: int, arrays: int, nbytes: int) -> None:
    limit = kind.LIMIT
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


def _view(dtype: np.dtype[Any], shape: Shape, frame: Frame) -> Array:
    """Return the array in a frame, aligned for its dtype."""
    view = _bytes_of(frame)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise WireError(f"an array of type {dtype} and shape {shape} has {view.nbytes} bytes")
    if not view.nbytes:
        return np.empty(shape, dtype)
    array: Array = np.ndarray(shape, dtype, view)
    return array.copy() if view.readonly or array.ctypes.data % _alignment(dtype) else array


def _alignment(dtype: np.dtype[Any]) -> int:
    """Return the alignment of arrays of this dtype."""
    return ENCODED_ALIGNMENT if dtype.itemsize == 1 else dtype.alignment


@dataclass(slots=True)
class ByteCounts:
    """Bytes and messages in both directions since the beginning, repeats included."""

    wire: int = 0
    """Bytes of messages that went through sockets."""
    shared: int = 0
    """Bytes of arrays that were passed in shared memory."""
    messages: int = 0

    def count_sent(self, frames: Sequence[bytes | memoryview], arrays: Sequence[Array]) -> None:
        """Count a sent message with all its arrays; those that are no frame are in shared memory."""
        self.wire += len(frames[0]) + len(frames[1])
        self.messages += 1
        if arrays:
            framed = sum([memoryview(frame).nbytes for frame in frames[2:]])
            self.wire += framed
            self.shared += sum([array.nbytes for array in arrays]) - framed

    def count_received(self, frames: Sequence[Frame], received: Received) -> None:
        """Count a received message."""
        self.wire += sum(map(len, frames))
        self.shared += received.lent
        self.messages += 1

    def __add__(self, other: "ByteCounts") -> "ByteCounts":
        """Return the sum of both."""
        return ByteCounts(self.wire + other.wire, self.shared + other.shared, self.messages + other.messages)
