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
from persia_cli.data.read.arrow_types import Class, class_of

TIMES: frozenset[Class] = frozenset({"date", "timestamp"})
"""The classes of columns whose values are times."""
READ_AS_TIMES = TIMES | {"text", "null"}
"""The classes of columns that can be read as times."""
FORM = "2024-01-31 or 2024-01-31T12:30:00Z"

_DAY, _HOUR = 86_400_000_000, 3_600_000_000
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_THURSDAY = 3
"""The weekday of 1970-01-01; Monday is 0."""
_ZONE = r"[T ][0-9:.]+(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_BLANKS = " \t"


class NotATimeError(Exception):
    """A value that cannot be a time, and its index in the array."""

    def __init__(self, index: int, value: object) -> None:
        self.index, self.value, self.reason = index, value, f"is not a date or time such as {FORM}"
        super().__init__(f"{value} {self.reason}")


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
        raise NotATimeError(first, values[first])
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
            raise NotATimeError(place, repr(texts[place].as_py())) from error
    raise TypeError("the texts are no times")


def _of_texts(texts: Any) -> Any:
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    has_zone = pc.match_substring_regex(texts, _ZONE)
    with_zone = pc.if_else(has_zone, texts, None).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    without = pc.if_else(has_zone, None, texts).cast(pa.timestamp("us")).cast(pa.int64())
    return pc.coalesce(with_zone, without)
