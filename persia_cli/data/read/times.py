"""Dates, timestamps and ISO 8601 texts as microseconds since 1970-01-01 in UTC, and parts of them, as whole arrays.

A time without a zone is one of UTC. Parts of a microsecond are left out, so times before 1970 are rounded down too.
"""

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.features import TimePart
from persia_cli.config.schema.time_format import UNITS
from persia_cli.data.read.arrow_types import Class, class_of
from persia_cli.data.read.time_texts import classes_of, example_of, written

TIMES: frozenset[Class] = frozenset({"date", "timestamp"})
"""The classes of columns whose values are times."""
READ_AS_TIMES: frozenset[Class] = frozenset({*TIMES, "text", "null"})
"""The classes of columns that can be read as times."""
FORM = "2024-01-31 or 2024-01-31T12:30:00Z"

_DAY, _HOUR = 86_400_000_000, 3_600_000_000
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_THURSDAY = 3
"""The weekday of 1970-01-01; Monday is 0."""
_ZONE = r"[T ][0-9:.]+(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_BLANKS = " \t"


class NotATimeError(Exception):
    """Values that cannot be times: the first, and the indices, int64, of those that were found."""

    def __init__(self, indices: NDArray[np.int64], value: object, form: str | None = None) -> None:
        self.indices, self.value, self.reason = indices, value, f"is not {described(form)}"
        super().__init__(f"{value} {self.reason}")

    @property
    def index(self) -> int:
        """The index of the first value."""
        return int(self.indices[0])


def described(form: str | None) -> str:
    """Return what a time of a format is, for people."""
    if form is None:
        return f"a date or time such as {FORM}"
    return f"a number of {form} since 1970" if form in UNITS else f"a time of the format {form}"


def remedy(form: str | None) -> str:
    """Return what to do about a text that is no time of a format."""
    if form is None:
        return f"write it as {FORM}, give the format of the times, such as format: '%m/%d/%Y', or leave it empty"
    return f"correct it or the format, write it as {example_of(form)}, or leave it empty"


def from_format(column: Any, form: str | None) -> Any:
    """Return an array, or a chunked one, with timestamps in place of texts and numbers that are in a format.

    Dates and timestamps are unchanged, and all arrays without a format. Raises NotATimeError.
    """
    if form is None or class_of(column.type) in TIMES | {"null"}:
        return column
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if class_of(array.type) not in READ_AS_TIMES | classes_of(form):
        raise TypeError(f"{array.type} is no time; give {described(form)}")
    micros, wrong = written(array, form)
    absent = array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if (wrong := wrong & ~absent).any():
        indices = np.flatnonzero(wrong)
        raise NotATimeError(indices, repr(array[int(indices[0])].as_py()), form)
    made = pa.array(micros, mask=absent).cast(pa.timestamp("us", "UTC"))
    return pa.chunked_array([made]) if isinstance(column, pa.ChunkedArray) else made


def microseconds(array: Any) -> Any:
    """Return the microseconds since 1970-01-01 of an Arrow array of times or texts as an array of int64, null for null.

    Raises NotATimeError for the first text that is no time, TypeError for an array of another type.
    """
    match class_of(array.type):
        case "date":
            return _scaled(array, array.cast(pa.date32()).cast(pa.int32()), _DAY)
        case "timestamp":
            if array.type.unit != "ns":
                return _scaled(array, array, _PER_UNIT[array.type.unit])
            fine = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            return _masked(array, fine // 1000)
        case "text":
            return _parsed(array)
        case "null":
            return array.cast(pa.int64())
    raise TypeError(f"{array.type} is no time; give dates, timestamps or texts such as {FORM}")


def time_numbers(array: Any, part: TimePart | None = None) -> NDArray[np.float64]:
    """Return times as days since 1970-01-01 with their fraction, or as a part of them; NaN for null."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found = microseconds(array)
    values = found.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = values / _DAY if part is None else part_of(values, part).astype(np.float64)
    return np.where(found.is_valid().to_numpy(zero_copy_only=False), numbers, np.nan)


def part_of(times: NDArray[np.int64], part: TimePart) -> NDArray[np.int64]:
    """Return the hour (0-23) or weekday (0-6, Monday is 0) of times in microseconds, or their days since 1970-01-01."""
    days = times // _DAY
    match part:
        case "hour":
            return times // _HOUR % 24
        case "weekday":
            return (days + _THURSDAY) % 7
    return days


def _scaled(array: Any, numbers: Any, factor: int) -> Any:
    if factor == 1:
        return numbers.cast(pa.int64())
    values = numbers.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    most = (2**63 - 1) // factor
    if (far := (values > most) | (values < -most)).any():
        first = int(np.argmax(far))
        raise NotATimeError(np.array([first]), values[first])
    return _masked(array, values * factor)


def _masked(array: Any, values: NDArray[np.int64]) -> Any:
    return pa.array(values, mask=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None)


def _parsed(texts: Any) -> Any:
    try:
        plain = pc.utf8_trim(texts.cast(pa.binary()).cast(pa.string()), _BLANKS)
    except pa.ArrowInvalid as error:
        raise TypeError("the bytes are no text, so they are no times") from error
    with suppress(pa.ArrowInvalid):
        return _of_texts(plain)
    for place in range(len(plain)):
        try:
            _of_texts(plain.slice(place, 1))
        except pa.ArrowInvalid as error:
            raise NotATimeError(np.array([place]), repr(texts[place].as_py())) from error
    raise TypeError("the texts are no times")


def _of_texts(texts: Any) -> Any:
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    has_zone = pc.match_substring_regex(texts, _ZONE)
    with_zone = pc.if_else(has_zone, texts, None).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    without = pc.if_else(has_zone, None, texts).cast(pa.timestamp("us")).cast(pa.int64())
    return pc.coalesce(with_zone, without)
