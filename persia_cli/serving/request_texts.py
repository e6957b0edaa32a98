"""Texts of requests, read as training read the fields of its CSV files."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from persia_cli.config.schema.base import Node
from persia_cli.data.read.arrow_types import class_of, is_list
from persia_cli.data.read.csv_files import numbers_of, without_markers
from persia_cli.data.read.lists import with_values
from persia_cli.errors import DataError
from persia_cli.serving.columns import Lists, arrow_column

Held = Literal["text", "integer", "number", "boolean"]
"""The type of a column of CSV files."""


class CsvFields(Node):
    """The rules by which the CSV files of training were read; texts of requests are read by the same rules."""

    nulls: tuple[str, ...]
    """Texts that stand for a missing value."""
    columns: Mapping[str, Held]
    """The type of each column that was read from fields; blanks around a number are ignored, those around text are part
    of it."""

    def read(self, name: str, given: Any) -> Any:
        """Return a column of a request with its texts read as those of training; other values are unchanged.

        Raises DataError for values of several types.
        """
        held = self.columns.get(name)
        if held is None:
            return given
        if isinstance(given, Lists):
            return Lists(self.read(name, given.values), given.lengths)
        made = partial(self._read, held)
        try:
            return of_texts(name, given, made)
        except DataError:
            if not isinstance(given, (list, tuple)):
                raise
            # Null markers may be mixed with numbers, value by value; that is slower, and rare.
            return of_texts(name, self._unmarked(given), made)

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
        texts = without_markers(texts, self.nulls)
        return texts if held == "text" else numbers_of(texts, held)


def of_texts(name: str, given: Any, made: Callable[[Any], Any]) -> Any:
    """Return the result of `made` for a column's texts, an Arrow array of strings, or for those in its lists.

    A column without texts is unchanged. Raises DataError for texts among other values.
    """
    if isinstance(given, np.ndarray) and given.dtype.kind not in "OTU":
        return given
    try:
        array = arrow_column(given, name).combine_chunks()
    except DataError:
        if _holds_text(given):
            raise
        return given
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    values = array.flatten() if is_list(array.type) else array
    if class_of(values.type) != "text":
        return given
    read = made(values.cast(pa.string()))
    return with_values(array, read) if is_list(array.type) else read


def _holds_text(values: Iterable[Any]) -> bool:
    return any(isinstance(each, str) or (isinstance(each, (list, tuple)) and _holds_text(each)) for each in values)
