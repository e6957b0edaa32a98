"""Texts of requests, read as training read the fields of its CSV files."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.config.schema.base import Node
from persia_cli.data.arrow_types import class_of, is_list
from persia_cli.data.csv_files import numbers_of
from persia_cli.serving.columns import Lists, arrow_column, with_values

Held = Literal["text", "number", "boolean"]
"""What a column of CSV files holds."""


class CsvFields(Node):
    """How the fields of CSV files were read from which a model was trained; texts of its requests are read so."""

    nulls: tuple[str, ...]
    """Texts that stand for a missing value."""
    columns: Mapping[str, Held]
    """What each column holds that was read from fields; blanks around a number do not belong to it, those around text
    do."""

    def read(self, name: str, given: Any) -> Any:
        """Return a column of a request as its texts would have been read; what is no text stays as it is.

        Raises DataError for values of several types.
        """
        held = self.columns.get(name)
        if held is None or not holds_text(given):
            return given
        if isinstance(given, Lists):
            return Lists(self.read(name, given.values), given.lengths)
        if isinstance(given, (list, tuple)):
            given = self._unmarked(given)
            if not holds_text(given):
                return given
        return of_texts(name, given, lambda texts: self._read(held, texts))

    def _unmarked(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        """Return values, which may be lists, with None in place of null markers; the others may be numbers."""
        return [
            self._unmarked(each)
            if isinstance(each, (list, tuple))
            else None
            if isinstance(each, str) and each in self.nulls
            else each
            for each in values
        ]

    def _read(self, held: Held, texts: Any) -> Any:
        markers = pa.array(self.nulls, pa.string())
        texts = pc.if_else(pc.is_in(texts, value_set=markers), None, texts)
        return texts if held == "text" else numbers_of(texts, held == "boolean")


def holds_text(given: Any) -> bool:
    """Return whether a column of a request, as it came, has texts."""
    match given:
        case Lists():
            return holds_text(given.values)
        case list() | tuple():
            return any(
                isinstance(each, str) or (isinstance(each, (list, tuple)) and holds_text(each)) for each in given
            )
        case np.ndarray():
            return given.dtype.kind in "OTU"
        case pa.Array() | pa.ChunkedArray():
            return class_of(given.type.value_type if is_list(given.type) else given.type) == "text"
    return False


def of_texts(name: str, given: Any, made: Callable[[Any], Any]) -> Any:
    """Return what is made of a column's texts, an Arrow array of strings, or of those in its lists."""
    array = arrow_column(given, name).combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values = array.flatten() if is_list(array.type) else array
    if class_of(values.type) != "text":
        return given
    read = made(values.cast(pa.string()))
    return with_values(array, read) if is_list(array.type) else read
