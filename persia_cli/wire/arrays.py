"""The arrays of messages: the last fields of a message, each an array, a block of arrays, or a list of either.

The type of an array says its dtype and names its dimensions, such as `Annotated[NDArray[np.float32], "sample task"]`.
Equal names mean equal sizes within a message, or within one block of it; `*` is any size. A block is a NamedTuple of
arrays, such as those of one feature group. An array or a block may be None if its type says so.

Only shapes travel in the header of a message, nested as its arrays are: dtypes are those of the declaration.
"""

import types
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import WireError
from persia_cli.wire.parts import BATCH_PART, Message

Array = NDArray[Any]
Shape = tuple[int, ...]
Size = Annotated[int, msgspec.Meta(ge=0, le=BATCH_PART.nbytes)]
Sizes = dict[str, int]
"""Sizes of named dimensions, as of the first array that has them."""
NextArray = Callable[[np.dtype[Any], Shape], Array]
"""Returns the next array of a message that has arrived, of this dtype and shape."""


class Form(NamedTuple):
    """How the value of a field becomes shapes and arrays, and back; both raise WireError if sizes do not fit."""

    shapes: Any
    """Type of its shapes, for msgspec: a tree of tuples and lists, and None for what is None."""
    flatten: Callable[[Any, list[Array], Sizes], Any]
    """Appends the arrays of a value to the list and returns their shapes."""
    restore: Callable[[Any, NextArray, Sizes], Any]
    """Returns the value with these shapes."""


def form_of(name: str, declared: Any) -> Form | None:
    """Return the form of a field with this type, None if it has no arrays."""
    origin, args = get_origin(declared), get_args(declared)
    if origin is Annotated and (dtype := dtype_of(args[0])) is not None:
        return _array_form(name, dtype, args[1].split())
    if origin is list:
        return _list_form(form_of(name, args[0]))
    if origin in (Union, types.UnionType) and args[1] is type(None):
        return _optional_form(form_of(name, args[0]))
    return _block_form(declared) if hasattr(declared, "_fields") else None


def dtype_of(declared: Any) -> np.dtype[Any] | None:
    """Return the dtype of `NDArray[...]`, None of any other type."""
    alias = get_origin(declared)
    if hasattr(alias, "__value__"):
        # From numpy 2.5 on NDArray is an alias by PEP 695, which get_origin does not look through.
        declared = alias.__value__[get_args(declared)]
    if get_origin(declared) is not np.ndarray:
        return None
    (scalar,) = get_args(get_args(declared)[1])
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def _array_form(name: str, dtype: np.dtype[Any], dims: list[str]) -> Form:
    named = [(axis, dim) for axis, dim in enumerate(dims) if dim != "*"]

    def check(shape: Shape, sizes: Sizes) -> None:
        for axis, dim in named:
            size = shape[axis]
            if sizes.setdefault(dim, size) != size:
                raise WireError(f"array '{name}' has size {size} where another has {sizes[dim]}")

    def flatten(array: Array, arrays: list[Array], sizes: Sizes) -> Shape:
        shape: Shape = array.shape
        # Native dtypes are single objects; to compare them takes longer than to recognise them.
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

    return Form(tuple[(Size,) * len(dims)], flatten, restore)  # type: ignore[misc]


def _list_form(inner: Form | None) -> Form | None:
    if inner is None:
        return None
    _, flatten, restore = inner
    return Form(
        list[inner.shapes],  # type: ignore[name-defined]
        lambda value, arrays, sizes: [flatten(each, arrays, sizes) for each in value],
        lambda shapes, next_array, sizes: [restore(each, next_array, sizes) for each in shapes],
    )


def _optional_form(inner: Form | None) -> Form | None:
    if inner is None:
        return None
    _, flatten, restore = inner
    return Form(
        inner.shapes | None,
        lambda value, arrays, sizes: None if value is None else flatten(value, arrays, sizes),
        lambda shapes, next_array, sizes: None if shapes is None else restore(shapes, next_array, sizes),
    )


def _block_form(block: Any) -> Form | None:
    hints = get_type_hints(block, include_extras=True)
    forms = [form for name in block._fields if (form := form_of(name, hints[name])) is not None]
    if len(forms) < len(hints):
        return None

    flattens, restores = [form.flatten for form in forms], [form.restore for form in forms]

    def flatten(value: Any, arrays: list[Array], _: Sizes) -> list[Any]:
        sizes: Sizes = {}
        return [flat(each, arrays, sizes) for flat, each in zip(flattens, value, strict=True)]

    def restore(shapes: Any, next_array: NextArray, _: Sizes) -> Any:
        sizes: Sizes = {}
        return block._make([back(each, next_array, sizes) for back, each in zip(restores, shapes, strict=True)])

    return Form(tuple[tuple(form.shapes for form in forms)], flatten, restore)  # type: ignore[misc]


class MessageForm:
    """The form of a kind of message: its header fields, and its arrays.

    `header` is a type with the header fields alone, `shapes` that of the shapes of all arrays, for msgspec.
    """

    def __init__(self, kind: type[Message]) -> None:
        self._kind = kind
        fields = msgspec.structs.fields(kind)
        self.arrays = {field.name: form for field in fields if (form := form_of(field.name, field.type)) is not None}
        header = fields[: len(fields) - len(self.arrays)]
        assert not {field.name for field in header} & self.arrays.keys(), f"arrays are the last fields of {kind}"
        self._names = [field.name for field in header]
        self.header: Any = kind
        if self.arrays:
            typed = [(field.name, field.type) for field in header]
            self.header = msgspec.defstruct(
                kind.__name__, typed, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True
            )
        self.shapes: Any = tuple[tuple(form.shapes for form in self.arrays.values())]  # type: ignore[misc]

    def flatten(self, message: Message) -> tuple[Any, list[Any], list[Array]]:
        """Return header fields, shapes and arrays; raises WireError if arrays are not as declared."""
        arrays: list[Array] = []
        if not self.arrays:
            return message, [], arrays
        sizes: Sizes = {}
        shapes = [form.flatten(getattr(message, name), arrays, sizes) for name, form in self.arrays.items()]
        return [getattr(message, name) for name in self._names], shapes, arrays

    def restore(self, header: Any, shapes: tuple[Any, ...], next_array: NextArray) -> Message:
        """Return the message; raises WireError if sizes differ that must be equal."""
        if not self.arrays:
            message: Message = header
            return message
        sizes: Sizes = {}
        forms = zip(self.arrays.values(), shapes, strict=True)
        values = [form.restore(each, next_array, sizes) for form, each in forms]
        return self._kind(*[getattr(header, name) for name in self._names], *values)
