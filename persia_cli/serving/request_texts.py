"""Texts of requests, read as training read the fields of its CSV files, and dates where the data had dates."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persia_cli.config.schema.base import Node
from persia_cli.data.arrow_types import class_of, is_list
from persia_cli.data.csv_files import numbers_of
from persia_cli.data.lists import with_values
from persia_cli.errors import DataError, one_line
from persia_cli.serving.columns import WHERE, Lists, arrow_column

Held = Literal["text", "number", "boolean"]
"""What a column of CSV files holds."""
Time = Literal["date", "timestamp"]
"""What a column of times holds."""
_ZONE = r"[T ][0-9:.]+(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"


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
            # Null markers may stand beside numbers, value by value; that is slower, and rare.
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
        markers = pa.array(self.nulls, pa.string())
        texts = pc.if_else(pc.is_in(texts, value_set=markers), None, texts)
        return texts if held == "text" else numbers_of(texts, held == "boolean")


def read_times(name: str, held: Time, given: Any) -> Any:
    """Return a column of a request with its texts as dates or timestamps; digits alone are numbers, as they are given.

    A timestamp is of UTC where it tells no zone. Raises DataError for other texts, and values of several types.
    """
    if isinstance(given, Lists):
        return Lists(read_times(name, held, given.values), given.lengths)
    return of_texts(name, given, partial(_times, name, held))


def _times(name: str, held: Time, texts: Any) -> Any:
    numbers = numbers_of(texts, False)
    if class_of(numbers.type) != "text":
        return numbers
    try:
        if held == "date":
            return numbers.cast(pa.date32())
        has_zone = pc.match_substring_regex(numbers, _ZONE)
        told = pc.if_else(has_zone, numbers, None).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        plain = pc.if_else(has_zone, None, numbers).cast(pa.timestamp("us")).cast(pa.int64())
        return pc.coalesce(told, plain).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid as error:
        form = "2024-01-31" if held == "date" else "2024-01-31T12:30:00Z"
        raise DataError(
            f"{WHERE}: field {name} has a text that is no {held}, {one_line(error)}; write it as {form}, or give null "
            "or a number: a dense feature is in days since 1970-01-01, and so is the id of a date, while the id of a "
            "timestamp is in microseconds"
        ) from error


def of_texts(name: str, given: Any, made: Callable[[Any], Any]) -> Any:
    """Return what is made of a column's texts, an Arrow array of strings, or of those in its lists.

    Without texts the column stays as it is. Raises DataError for texts among other values.
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
