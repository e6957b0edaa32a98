"""The tensors of a request, as JSON or as bytes after it, become columns of fields."""

import math
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import count
from persia_cli.serving.http.refused import bad
from persia_cli.serving.packed import numbers

NUMBERS = {
    "BOOL": np.dtype("?"),
    **{
        f"{sign}INT{bits}": np.dtype(f"<{kind}{bits // 8}")
        for bits in (8, 16, 32, 64)
        for sign, kind in (("", "i"), ("U", "u"))
    },
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
}
"""Element types of tensors; BYTES are texts."""
MOST = 2**31
"""Exclusive upper bound of a size in a shape."""
WHOLE = (np.dtype(np.int64), np.dtype(np.uint64))
PLAIN, NESTED = frozenset({int, float}), frozenset({list, dict})
Values = NDArray[Any] | list[Any]


class Tensor(msgspec.Struct):
    """An input of a request."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None

    @property
    def count(self) -> int:
        """Number of its values."""
        return math.prod(self.shape)

    @property
    def binary_size(self) -> int | None:
        """Its number of bytes after the JSON, or None if its values are in the JSON; raises RefusedRequestError."""
        size = (self.parameters or {}).get("binary_data_size")
        if size is None:
            return None
        if type(size) is not int or size < 0:
            raise bad(f"input {self.name}: binary_data_size is the number of its bytes, not {_shown(size)}")
        if self.data is not None:
            raise bad(f"input {self.name} has both data and binary_data_size; leave one of them out")
        return size

    def require_shape(self) -> None:
        """Raise RefusedRequestError for a shape or datatype that no input has."""
        if self.datatype != "BYTES" and self.datatype not in NUMBERS:
            known = ", ".join([*NUMBERS, "BYTES"])
            raise bad(f"input {self.name} has the datatype {_shown(self.datatype)}, which is none of {known}")
        if not 1 <= len(self.shape) <= 2 or min(self.shape) < 0 or max(self.shape) >= MOST:
            raise bad(f"input {self.name} has the shape {_shown(self.shape)}; give [samples] or [samples, values]")


def values_in_json(tensor: Tensor) -> Values:
    """Return the values of a tensor, flat; raises RefusedRequestError."""
    if tensor.data is None:
        raise bad(f"input {tensor.name} has neither data nor binary_data_size")
    values = tensor.data
    if len(tensor.shape) == 2 and values and isinstance(values[0], list):
        if len(values) != tensor.shape[0] or any(
            type(row) is not list or len(row) != tensor.shape[1] for row in values
        ):
            raise bad(f"input {tensor.name} has other rows than its shape {tensor.shape} says")
        values = list(chain.from_iterable(values))
    if len(values) != tensor.count:
        raise bad(f"input {tensor.name} has {count(len(values), 'value')}, and its shape is {tensor.shape}")
    require_plain(tensor.name, values)
    return _typed(values, tensor.datatype)


def values_in_bytes(tensor: Tensor, part: memoryview) -> Values:
    """Return the values of a tensor, flat; raises RefusedRequestError."""
    if tensor.datatype == "BYTES":
        return _texts(tensor, bytes(part))
    dtype = NUMBERS[tensor.datatype]
    if len(part) != tensor.count * dtype.itemsize:
        raise bad(
            f"input {tensor.name} has {count(len(part), 'byte')}, and {tensor.datatype} of the shape {tensor.shape} "
            f"has {tensor.count * dtype.itemsize:,}"
        )
    return numbers(part, dtype, tensor.count, 0)


def require_plain(name: str, values: list[Any]) -> None:
    """Raise RefusedRequestError for values that are lists or objects."""
    if not NESTED.isdisjoint(map(type, values)):
        raise bad(f"input {name} has a list or an object where a number or a text belongs")


def _typed(values: list[Any], datatype: str) -> Values:
    """Return numbers as an array, which is read faster, and other values, nulls and ids as texts, unchanged."""
    if datatype == "BYTES" or not values or not set(map(type, values)) <= PLAIN:
        return values
    try:
        array = np.array(values)
    except OverflowError:
        return values
    if array.dtype in WHOLE:
        return array if datatype not in ("FP16", "FP32") else array.astype(np.float64).astype(np.float32)
    if array.dtype == np.float64 and datatype == "FP32" and np.isfinite(array).all():
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    return values


def _texts(tensor: Tensor, part: bytes) -> list[str]:
    """Return texts, each after its length in four bytes."""
    texts: list[str] = []
    position = 0
    while position < len(part):
        begin = position + 4
        position = begin + int.from_bytes(part[position:begin], "little")
        if begin > len(part) or position > len(part):
            raise bad(f"input {tensor.name}: the last of its texts is shorter than its length says")
        try:
            texts.append(part[begin:position].decode())
        except UnicodeDecodeError:
            raise bad(f"input {tensor.name}: text {len(texts)} (the first is 0) is not UTF-8") from None
    if len(texts) != tensor.count:
        raise bad(f"input {tensor.name} has {count(len(texts), 'text')}, and its shape is {tensor.shape}")
    return texts


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
