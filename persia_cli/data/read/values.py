"""The documented rules that convert values of any Arrow type to 64-bit ids or to numbers, whole arrays at a time.

An id is the integer itself (a negative one as its two's complement); 1 for true and 0 for false; a float or decimal
that is whole, as an integer, except in text files, where an integer is what is written as one
(persia_cli.data.read.columns); the microseconds since 1970-01-01 of a date or timestamp (persia_cli.data.read.times);
the hash of a text (persia_cli.data.read.ids). A number is the value itself, and the days since 1970-01-01 of dates and
timestamps, with their fraction.
"""

import re
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.read.arrow_types import UnusableValueError, class_of
from persia_cli.data.read.ids import NULL_ID, text_buffers, text_ids
from persia_cli.data.read.times import TIMES, microseconds, time_numbers

Made = Literal["integer", "text", "time"] | None
"""The source of an id: the value as an integer, its text, its time, or None for the usual one of the type."""

INTEGER = re.compile(r"-?[0-9]{1,20}\Z", re.ASCII)


def id_values(array: Any, table: str, made: Made, missing: np.uint64) -> NDArray[np.uint64]:
    """Return an id for each value of an Arrow array, `missing` for null and NaN; `table` seeds the hash of text.

    A dictionary's values are converted once. Raises UnusableValueError for the first value that cannot be an id.
    """
    if isinstance(array, pa.ChunkedArray):
        return _chunks(array, table, made, missing)
    if pa.types.is_dictionary(array.type):
        return _dictionary(array, table, made, missing)
    kind = class_of(array.type)
    if kind == "null":
        return np.full(len(array), missing, np.uint64)
    is_hashed = made == "text" or (kind == "text" and made is None)
    if made == "time" or (kind in TIMES and made is None):
        array = microseconds(array)
    elif is_hashed:
        array = text_ids(table, array if kind == "text" else texts_of(array))
    else:
        array = _parsed(array) if kind == "text" else _integers(array)
    values: NDArray[np.uint64] = array.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    if not is_hashed and (clash := values == np.uint64(NULL_ID)).any():
        raise UnusableValueError(np.flatnonzero(clash), NULL_ID, "is the id that stands for null")
    if not array.null_count:
        return values
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), values, missing)


def float_values(column: Any) -> NDArray[np.float64]:
    """Return the numbers of an Arrow array or chunked array as float64, NaN for null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if class_of(column.type) in TIMES:
        return time_numbers(column)
    return _numpy(column.cast(pa.float64(), safe=False))


def _numpy(column: Any) -> NDArray[np.float64]:
    whole: NDArray[np.float64] = column.to_numpy(
        **({} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False})
    )
    return whole


def _chunks(column: Any, table: str, made: Made, missing: np.uint64) -> NDArray[np.uint64]:
    parts = [np.empty(0, np.uint64)]
    done = 0
    for chunk in column.chunks:
        try:
            parts.append(id_values(chunk, table, made, missing))
        except UnusableValueError as bad:
            bad.indices = bad.indices + done
            raise
        done += len(chunk)
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _dictionary(array: Any, table: str, made: Made, missing: np.uint64) -> NDArray[np.uint64]:
    try:
        known = id_values(array.dictionary, table, made, missing)
    except UnusableValueError:  # the value may be in no row; decoding shows this, or finds its row
        return id_values(array.dictionary_decode(), table, made, missing)
    known = np.append(known, missing)  # for nulls
    places: NDArray[np.int64] = array.indices.cast(pa.int64()).fill_null(known.size - 1).to_numpy(zero_copy_only=False)
    return known[places]


def _integers(array: Any) -> Any:
    """Return an array of int64 or uint64, null where the value is null."""
    match class_of(array.type):
        case "integer":
            return array.cast(pa.uint64() if pa.types.is_unsigned_integer(array.type) else pa.int64())
        case "boolean":
            return array.cast(pa.int64())
        case "float":
            return whole_floats(array)
        case "decimal":
            return _whole_decimals(array)
    raise TypeError(f"{array.type} holds no {'integers' if class_of(array.type) in TIMES else 'ids'}")


def whole_floats(array: Any) -> Any:
    """Return whole numbers as int64 and NaN as null; 2^53 is refused, since it may be a rounded 2^53 + 1."""
    limit = 2.0 ** {pa.float16(): 11, pa.float32(): 24}.get(array.type, 53)
    values = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    absent = np.isnan(values)
    good = absent | (np.isfinite(values) & (np.trunc(values) == values) & (np.abs(values) < limit))
    if not good.all():
        first = int(np.argmin(good))
        large = np.isfinite(values[first]) and np.trunc(values[first]) == values[first]
        reason = f"is beyond the whole numbers that {array.type} can represent" if large else "is not a whole number"
        value = f"{values[first]:.17g}" if large else values[first]
        raise UnusableValueError(np.flatnonzero(~good), value, reason)
    return pa.array(np.where(absent, 0.0, values).astype(np.int64), mask=absent)


def _whole_decimals(array: Any) -> Any:
    if array.type.bit_width < 128:  # pyarrow has few functions for these types
        array = array.cast(pa.decimal128(38, array.type.scale))
    for wide in (pa.int64(), pa.uint64()):
        try:
            return array.cast(wide)
        except pa.ArrowInvalid:
            continue
    whole = pc.fill_null(pc.equal(pc.floor(array), array), True).to_numpy(zero_copy_only=False)
    first = int(np.argmin(whole)) if not whole.all() else int(np.argmax(np.abs(_numpy(array.cast(pa.float64())))))
    reason = "does not fit into 64 bits" if whole.all() else "is not a whole number"
    raise UnusableValueError(np.array([first]), array[first], reason)


def _parsed(texts: Any) -> Any:
    """Return the integers that texts of decimal digits stand for."""
    texts = texts.cast(pa.large_binary()).cast(pa.large_string())
    # A cast also reads 0x1F.
    if not np.isin(text_buffers(texts)[0], (ord("x"), ord("X"))).any():
        negative = pc.starts_with(texts, "-")
        with suppress(pa.ArrowInvalid):
            return texts.cast(pa.int64())
        with suppress(pa.ArrowInvalid):
            low = pc.if_else(negative, texts, None).cast(pa.int64()).view(pa.uint64())
            return pc.coalesce(low, pc.if_else(negative, None, texts).cast(pa.uint64()))
    numbered = enumerate(texts.to_pylist())
    wrong = np.array([row for row, text in numbered if text is not None and not _is_integer(text)] or [0])
    raise UnusableValueError(wrong, repr(texts[int(wrong[0])].as_py()), "is not an integer")


def _is_integer(text: str) -> bool:
    return bool(INTEGER.match(text)) and -(2**63) <= int(text) < 2**64


def texts_of(array: Any) -> Any:
    """Return values as text: whole numbers in decimal digits, dates as 2024-01-31, true and false."""
    kind = class_of(array.type)
    if kind in ("float", "decimal"):
        array = _integers(array)
    elif kind == "timestamp":
        raise TypeError("timestamps have no single form as text")
    elif kind == "date":
        array = array.cast(pa.date32())
    return array.cast(pa.string())
