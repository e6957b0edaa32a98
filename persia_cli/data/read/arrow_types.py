"""Classes of Arrow types by the values they hold, whatever their width and encoding, and the error of a value."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Class = Literal["integer", "float", "boolean", "decimal", "date", "timestamp", "text", "null", "list", "other"]
"""The class of a type's values; `null` is a column without any value."""

WORDS: dict[Class, str] = {
    "integer": "integers",
    "float": "numbers with a fraction",
    "boolean": "true and false",
    "decimal": "decimal numbers",
    "date": "dates",
    "timestamp": "timestamps",
    "text": "strings",
    "null": "nothing but nulls",
    "list": "lists",
}
"""The contents of a column of each class, for messages."""

NUMBERS = frozenset({"integer", "float", "boolean", "decimal"})
"""The classes whose values are single numbers; files of one data set may differ within them."""


class UnusableValueError(Exception):
    """Values that cannot be ids, times or numbers: the first, and the indices, int64, of those that were found."""

    def __init__(self, indices: NDArray[np.int64], value: object, reason: str) -> None:
        super().__init__(f"{value} {reason}")
        self.indices = indices

    @property
    def index(self) -> int:
        """The index of the first value."""
        return int(self.indices[0])


def plain_type(kind: Any) -> Any:
    """Return the type of the values: a dictionary's value type, and the storage type of UUIDs and other extensions."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def without_extensions(table: Any) -> Any:
    """Return an Arrow table or batch with the stored values in place of extension types, such as the bytes of UUIDs."""
    for number, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            table = table.set_column(number, field.name, table.column(number).cast(field.type.storage_type))
    return table


def class_of(kind: Any) -> Class:
    """Return the class of a type's values."""
    kind, types = plain_type(kind), pa.types
    tests: tuple[tuple[Class, bool], ...] = (
        ("integer", types.is_integer(kind)),
        ("float", types.is_floating(kind)),
        ("text", is_text(kind)),
        ("list", is_list(kind)),
        ("boolean", types.is_boolean(kind)),
        ("decimal", types.is_decimal(kind)),
        ("date", types.is_date(kind)),
        ("timestamp", types.is_timestamp(kind)),
        ("null", types.is_null(kind)),
    )
    return next((name for name, holds in tests if holds), "other")


def is_list(kind: Any) -> bool:
    """Return True if an Arrow type is a list, of fixed or variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_text(kind: Any) -> bool:
    """Return True if an Arrow type is text or bytes."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )
