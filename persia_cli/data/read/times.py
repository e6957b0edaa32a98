"""Times as microseconds since 1970-01-01 in UTC, and parts of them, as whole arrays.

Dates, timestamps, ISO 8601 texts, and texts or numbers in a given format are times.
A time without a zone is one of UTC. Parts of a microsecond are left out, so times before 1970 are rounded down too.
`pyarrow.compute.strptime` reads 2015-02-30 as the second of March and no parts of a second, so the fields of a format
are taken by a regular expression and put together here.
"""

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.features import TimePart
from persia_cli.config.schema.time_format import FIELDS, UNITS, fields_of
from persia_cli.data.read.arrow_types import Class, UnusableValueError, class_of, plain_type

MONTHS = pa.array(["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"])
_EXAMPLE = datetime(2024, 1, 31, 12, 30)
_FAR = 2.0**62
_CENTURY = 69
"""The first year of two digits that is one before 2000."""


def classes_of(form: str | None) -> frozenset[Class]:
    """Return the classes of columns, other than times and texts, that a format can be read from."""
    return frozenset() if form is None else frozenset({"integer", "float", "decimal"} if form in UNITS else {"integer"})


def example_of(form: str) -> str:
    """Return a time that is written in a format."""
    if form in UNITS:
        return str(int(1_706_704_200_000_000 / UNITS[form]))
    return _EXAMPLE.strftime(form.replace("%z", "+0000"))


def written(array: Any, form: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the microseconds since 1970-01-01 of an array of texts or numbers, and which values are no times."""
    if form not in UNITS:
        return _by_fields(array, form)
    if class_of(array.type) == "text":
        array = pc.if_else(pc.match_substring_regex(array, r"^-?\d{1,18}(\.\d*)?$"), array, None)
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        micros = np.floor(numbers * UNITS[form])
    good = np.abs(micros) < _FAR
    return np.where(good, micros, 0.0).astype(np.int64), ~good


def _by_fields(array: Any, form: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    texts = pc.utf8_upper(pc.utf8_trim_whitespace(array.cast(pa.string())))
    fields = pc.extract_regex(texts, pattern_of(form))
    given = set(fields_of(form))

    def text(name: str) -> Any:
        return pc.fill_null(pc.struct_field(fields, name), "")

    def number(name: str, absent: int = 0) -> NDArray[np.int64]:
        if name not in given:
            return np.full(len(array), absent, np.int64)
        digits = pc.struct_field(fields, name).fill_null(str(absent))
        values: NDArray[np.int64] = digits.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return values

    year, month, hour = number("Y"), number("m", 1), number("H")
    if "y" in given:
        short = number("y")
        year = short + np.where(short >= _CENTURY, 1900, 2000)
    if "b" in given:
        names = pc.utf8_slice_codeunits(text("b"), 0, 3)
        month = pc.index_in(names, MONTHS).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    if "I" in given:
        hour = number("I") % 12 + 12 * pc.equal(text("p"), "PM").to_numpy(zero_copy_only=False)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (number("d", 1) - 1)
    wrong = fields.is_null().to_numpy(zero_copy_only=False) | (days.astype("datetime64[M]") != months)
    seconds = (hour * 60 + number("M")) * 60 + number("S")
    if "z" in given:
        seconds -= _offsets(text("z"))
    micros = days.astype("datetime64[us]").astype(np.int64) + seconds * 1_000_000
    if "f" in given:
        micros += pc.utf8_slice_codeunits(pc.utf8_rpad(text("f"), 6, "0"), 0, 6).cast(pa.int64()).to_numpy(False)
    return micros, wrong


def _offsets(zones: Any) -> NDArray[np.int64]:
    """Return the seconds of offsets such as +02:00, and 0 of Z."""
    parts = pc.extract_regex(pc.replace_substring(zones, "Z", "+0000"), r"^(?P<s>[+-])(?P<h>\d\d):?(?P<m>\d\d)$")
    hours, minutes = (
        pc.struct_field(parts, name).fill_null("0").cast(pa.int64()).to_numpy(zero_copy_only=False) for name in "hm"
    )
    is_west = pc.equal(pc.struct_field(parts, "s").fill_null("+"), "-").to_numpy(zero_copy_only=False)
    seconds: NDArray[np.int64] = (hours * 60 + minutes) * 60 * np.where(is_west, -1, 1)
    return seconds


def pattern_of(form: str) -> str:
    """Return the regular expression of texts, in capitals, that fit a format, with a group for each field."""
    pieces = re.split("%(.)", form)
    for number, name in enumerate(fields_of(form)):
        pieces[2 * number + 1] = f"(?P<{name}>{FIELDS[name]})"
    pieces[::2] = [re.escape(piece.upper()).replace(r"\ ", r"\s+") for piece in pieces[::2]]
    return f"^{''.join(pieces)}$"


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


def described(form: str | None) -> str:
    """Return what a time of a format is, for people."""
    if form is None:
        return f"a date or time such as {FORM}"
    return f"a number of {form} since 1970" if form in UNITS else f"a time of the format {form}"


def _no_time(indices: NDArray[np.int64], value: object, form: str | None = None) -> UnusableValueError:
    return UnusableValueError(indices, value, f"is not {described(form)}")


def remedy(form: str | None) -> str:
    """Return what to do about a text that is no time of a format."""
    if form is None:
        return f"write it as {FORM}, give the format of the times, such as format: '%m/%d/%Y', or leave it empty"
    return f"correct it or the format, write it as {example_of(form)}, or leave it empty"


def from_format(column: Any, form: str | None) -> Any:
    """Return an array, or a chunked one, with timestamps in place of texts and numbers that are in a format.

    Dates and timestamps are unchanged, and all arrays without a format. Raises UnusableValueError.
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
        raise _no_time(indices, repr(array[int(indices[0])].as_py()), form)
    times = pa.array(micros, mask=absent).cast(pa.timestamp("us", "UTC"))
    return pa.chunked_array([times]) if isinstance(column, pa.ChunkedArray) else times


def microseconds(array: Any) -> Any:
    """Return the microseconds since 1970-01-01 of an Arrow array of times or texts as an array of int64, null for null.

    Raises UnusableValueError for the first text that is no time, TypeError for an array of another type.
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


def time_integers(column: Any, form: str | None) -> Any:
    """Return times of a chunked array as `microseconds` does, and integers without a format unchanged, null for null.

    Raises UnusableValueError for what is no time, pyarrow.ArrowInvalid for an integer beyond 63 bits.
    """
    column = from_format(column.cast(plain_type(column.type)).combine_chunks(), form)
    return column.cast(pa.int64()) if class_of(column.type) == "integer" else microseconds(column)


def time_numbers(array: Any, part: TimePart | None = None) -> NDArray[np.float64]:
    """Return times as days since 1970-01-01 with their fraction, or as a part of them; NaN for null."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    times = microseconds(array)
    values = times.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = values / _DAY if part is None else part_of(values, part).astype(np.float64)
    return np.where(times.is_valid().to_numpy(zero_copy_only=False), numbers, np.nan)


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
        raise _no_time(np.array([first]), values[first])
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
    for row in range(len(plain)):
        try:
            _of_texts(plain.slice(row, 1))
        except pa.ArrowInvalid as error:
            raise _no_time(np.array([row]), repr(texts[row].as_py())) from error
    raise TypeError("the texts are no times")


def _of_texts(texts: Any) -> Any:
    texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    has_zone = pc.match_substring_regex(texts, _ZONE)
    with_zone = pc.if_else(has_zone, texts, None).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    without = pc.if_else(has_zone, None, texts).cast(pa.timestamp("us")).cast(pa.int64())
    return pc.coalesce(with_zone, without)
