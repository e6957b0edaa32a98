"""The base classes of messages: sets of fields, size limits, and arrays.

The last fields of a message may be arrays: each an array, a block of arrays, or a list of either. The type of an array
has its dtype and the names of its dimensions, such as `Annotated[NDArray[np.float32], "sample task"]`. Equal names mean
equal sizes within a message, or within one block of it; `*` is any size. A block is a NamedTuple of arrays, such as
those of one feature group. An array or a block may be None if its type has it.

Only shapes travel in the header of a message, nested as its arrays are: dtypes are those of the declaration.
"""

import types
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


KIB, MIB = 1 << 10, 1 << 20


class Limit(NamedTuple):
    """The size limits of a kind of message, which bound the memory that a peer can make a replica use.

    A larger message is neither sent nor decoded.
    """

    header: int
    """Bytes of the header: request number, fields, and the shape of each array."""
    arrays: int = 0
    """Number of arrays."""
    nbytes: int = 0
    """Bytes of all arrays together."""


BATCH_PART = Limit(MIB, arrays=4096, nbytes=1 << 30)
"""Limit of messages with a part of a batch: these grow with the batch and the number of feature groups and servers."""


class FieldSet(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A set of fields that several messages share."""


class BatchId(FieldSet, frozen=True):
    """The identity of a batch, its look-ups and its updates in all messages."""

    split: Annotated[int, msgspec.Meta(ge=0, le=1)]
    """0 train, 1 eval."""
    step: Count
    rank: Count


class Sender(FieldSet, frozen=True):
    """The replica that sends a request to the coordinator, and its incarnation; older incarnations are refused."""

    role: str
    index: Count
    incarnation: Count


class ProcessId(FieldSet, frozen=True):
    """The identity of one process among those of all machines.

    The process id alone is not enough: each container numbers its processes from 1, and two machines may use one id at
    the same time.
    """

    pid: Count
    began: Count = 0
    """Start time of the process, in ticks since its machine started."""
    domain: str = ""
    """The result of `persia_cli.wire.process.memory_domain`; empty where that is unknown."""


class TableTotals(FieldSet, frozen=True):
    """Counters of all tables that features read, since the start, on one embedding server or summed over several."""

    rows: Count = 0
    """Rows in memory at present."""
    evicted: Count = 0
    hits: Count = 0
    """Distinct keys of training look-ups that had a row; `misses` are those that had none."""
    misses: Count = 0
    returned: Count = 0
    """Rows that returned from disks; the others are 0 too if rows that leave memory are lost."""
    cold_loaded: Count = 0
    """Rows that were loaded to disks."""
    dropped: Count = 0
    """Rows that were lost, because the space on disks was used up."""
    cold_reads: Count = 0
    """Rows read from disks."""
    cold_waited_us: Count = 0
    """Microseconds for which requests waited for such reads."""
    cold_written: Count = 0
    """Bytes written to disks."""

    @property
    def cold_rows(self) -> int:
        """Rows on disks, for a job that has its evicted rows there."""
        return self.evicted + self.cold_loaded - self.returned - self.dropped


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A message: the last of its fields may be arrays, which `persia_cli.wire.message` describes.

    The other fields travel in the header, the arrays as raw frames after it or in shared memory.
    """

    KIND: ClassVar[int]
    """First byte of the message."""
    LIMIT: ClassVar[Limit] = Limit(KIB)
    REPLY: ClassVar["type[Message] | None"] = None
    """Type of the reply if it is a request."""


Reply = TypeVar("Reply", bound=Message)


class Request(Message, Generic[Reply], frozen=True):
    """A message that is answered by one of type Reply; Pending or Refused may come instead."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.REPLY = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]


Array = NDArray[Any]
Shape = tuple[int, ...]
Size = Annotated[int, msgspec.Meta(ge=0, le=BATCH_PART.nbytes)]
Sizes = dict[str, int]
"""Sizes of named dimensions, from the first array that has them."""
NextArray = Callable[[np.dtype[Any], Shape], Array]
"""Returns the next array of a received message, of this dtype and shape."""


class FieldCodec(NamedTuple):
    """The conversion of a field's value to shapes and arrays, and back; both raise WireError if sizes do not fit."""

    shapes: Any
    """Type of its shapes, for msgspec: a tree of tuples and lists, and None for what is None."""
    flatten: Callable[[Any, list[Array], Sizes], Any]
    """Appends the arrays of a value to the list and returns their shapes."""
    restore: Callable[[Any, NextArray, Sizes], Any]
    """Returns the value with these shapes."""


def codec_of(name: str, declared: Any) -> FieldCodec | None:
    """Return the codec of a field of this type, None if it has no arrays."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated and (dtype := dtype_of(args[0])) is not None:
        return _array_codec(name, dtype, args[1].split())
    is_optional = origin in (Union, types.UnionType) and args[1] is type(None)
    if (origin is list or is_optional) and (inner := codec_of(name, args[0])) is not None:
        return _optional_codec(inner) if is_optional else _list_codec(inner)
    return _block_codec(declared) if hasattr(declared, "_fields") else None


def dtype_of(declared: Any) -> np.dtype[Any] | None:
    """Return the dtype of `NDArray[...]`, None for any other type."""
    alias = get_origin(declared)
    if hasattr(alias, "__value__"):
        # From numpy 2.5 on NDArray is an alias by PEP 695, which get_origin does not resolve.
        declared = alias.__value__[get_args(declared)]
    if get_origin(declared) is not np.ndarray:
        return None
    (scalar,) = get_args(get_args(declared)[1])
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def _array_codec(name: str, dtype: np.dtype[Any], dims: list[str]) -> FieldCodec:
    named = [(axis, dim) for axis, dim in enumerate(dims) if dim != "*"]

    def check(shape: Shape, sizes: Sizes) -> None:
        for axis, dim in named:
            size = shape[axis]
            if sizes.setdefault(dim, size) != size:
                raise WireError(f"array '{name}' has size {size} where another has {sizes[dim]}")

    def flatten(array: Array, arrays: list[Array], sizes: Sizes) -> Shape:
        shape: Shape = array.shape
        # Native dtypes are single objects, so an identity check avoids the slower comparison.
        if (array.dtype is not dtype and array.dtype != dtype) or len(shape) != len(dims):
            raise WireError(
                f"array '{name}' must be {dtype} with {len(dims)} dimensions, not {array.dtype} with {array.ndim}"
            )
        arrays.append(array)
        check(shape, sizes)
        return shape

    def restore(shape: Shape, next_array: NextArray, sizes: Sizes) -> Array:
        check(shape, sizes)
        return next_array(dtype, shape)

    return FieldCodec(tuple[(Size,) * len(dims)], flatten, restore)  # type: ignore[misc]


def _list_codec(inner: FieldCodec) -> FieldCodec:
    _, flatten, restore = inner
    return FieldCodec(
        list[inner.shapes],  # type: ignore[name-defined]
        lambda value, arrays, sizes: [flatten(element, arrays, sizes) for element in value],
        lambda shapes, next_array, sizes: [restore(shape, next_array, sizes) for shape in shapes],
    )


def _optional_codec(inner: FieldCodec) -> FieldCodec:
    _, flatten, restore = inner
    return FieldCodec(
        inner.shapes | None,
        lambda value, arrays, sizes: None if value is None else flatten(value, arrays, sizes),
        lambda shapes, next_array, sizes: None if shapes is None else restore(shapes, next_array, sizes),
    )


def _block_codec(block: Any) -> FieldCodec | None:
    hints = get_type_hints(block, include_extras=True)
    codecs = [codec for name in block._fields if (codec := codec_of(name, hints[name])) is not None]
    if len(codecs) < len(hints):
        return None

    flattens, restores = [codec.flatten for codec in codecs], [codec.restore for codec in codecs]

    def flatten(value: Any, arrays: list[Array], _: Sizes) -> list[Any]:
        sizes: Sizes = {}
        return [flat(array, arrays, sizes) for flat, array in zip(flattens, value, strict=True)]

    def restore(shapes: Any, next_array: NextArray, _: Sizes) -> Any:
        sizes: Sizes = {}
        return block._make([back(shape, next_array, sizes) for back, shape in zip(restores, shapes, strict=True)])

    return FieldCodec(tuple[tuple(codec.shapes for codec in codecs)], flatten, restore)  # type: ignore[misc]


class MessageCodec:
    """The codec of a kind of message: its header fields, and its arrays.

    `header` is a type with the header fields alone, `shapes` that of the shapes of all arrays, for msgspec.
    """

    def __init__(self, kind: type[Message]) -> None:
        self._kind = kind
        fields = msgspec.structs.fields(kind)
        self.arrays = {field.name: codec for field in fields if (codec := codec_of(field.name, field.type)) is not None}
        header = fields[: len(fields) - len(self.arrays)]
        assert not {field.name for field in header} & self.arrays.keys(), f"arrays are the last fields of {kind}"
        self._names = [field.name for field in header]
        self.header: Any = kind
        if self.arrays:
            typed = [(field.name, field.type) for field in header]
            self.header = msgspec.defstruct(
                kind.__name__, typed, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True
            )
        self.shapes: Any = tuple[tuple(codec.shapes for codec in self.arrays.values())]  # type: ignore[misc]

    def flatten(self, message: Message) -> tuple[Any, list[Any], list[Array]]:
        """Return header fields, shapes and arrays; raise WireError if arrays are not as declared."""
        arrays: list[Array] = []
        if not self.arrays:
            return message, [], arrays
        sizes: Sizes = {}
        shapes = [codec.flatten(getattr(message, name), arrays, sizes) for name, codec in self.arrays.items()]
        return [getattr(message, name) for name in self._names], shapes, arrays

    def restore(self, header: Any, shapes: tuple[Any, ...], next_array: NextArray) -> Message:
        """Return the message; raises WireError if sizes differ that must be equal."""
        if not self.arrays:
            message: Message = header
            return message
        sizes: Sizes = {}
        codecs = zip(self.arrays.values(), shapes, strict=True)
        values = [codec.restore(shape, next_array, sizes) for codec, shape in codecs]
        return self._kind(*[getattr(header, name) for name in self._names], *values)
