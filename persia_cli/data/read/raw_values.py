"""Columns made of fields as a source has them, by the declarations of `persia_cli.config.schema.raw`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.raw import AtLeast, Divide, FloorDivide, RawColumns, Remainder, Step, Subtract
from persia_cli.data.read.arrow_types import UnusableValueError, class_of, is_list
from persia_cli.data.read.ids import text_ids
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, Kind, hexadecimal, text_of, values_of
from persia_cli.data.read.values import whole_floats

Reject = Callable[[NDArray[np.bool_], str], None]
"""Gets True for each value of which nothing can be made, and the reason."""
KINDS = {"text": ("text", "integer", "null"), "texts": ("text", "integer", "null"), "hexadecimal": ("text", "null")}
"""Classes of what a request may give for text."""
NUMBERS = ("text", "integer", "float", "boolean", "decimal", "null")
"""Classes of what it may give for numbers."""


def log_buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(log(x)^2) for x above 2 and x itself elsewhere: fine buckets for small counts, coarse for large.

    (Y. Juan, W.-S. Chin, Y. Zhuang and M. Jahrer, the winners of Criteo's challenge, 2014.)
    """
    return np.where(values > 2, np.floor(np.log(np.maximum(values, 3)) ** 2), values).astype(np.int64)


def hours_of(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the hours since 1970 of times written as YYMMDDHH, and True for each value that is no such time."""
    year, month, day, hour = (values // 10**power % 100 for power in (6, 4, 2, 0))
    wrong = (values < 0) | (values >= 10**8) | (month < 1) | (month > 12) | (day < 1) | (hour > 23)
    months = (year + 30) * 12 + np.where(wrong, 1, month) - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    days = first + np.where(wrong, 1, day) - 1
    next_first = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return 24 * days + hour, wrong | (days >= next_first)


def text_lists(table: str, lists: Any, stripped: bool = False) -> Any:
    """Return lists of text as Arrow lists of ids; empty texts and nulls are left out, and no list is an empty one."""
    texts = lists.flatten().cast(pa.string())
    if stripped:
        texts = pc.ascii_trim(texts, " ")
    kept = pc.fill_null(pc.not_equal(texts, ""), False)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    bounds = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))])[ends]
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), text_ids(table, texts.filter(kept)))


def made_of(raw: RawColumns, column: str, values: Any, reject: Reject) -> Any:
    """Return a column, made of its field's numbers [n] or of ids as an Arrow array."""
    for step in raw.steps:
        if step == "text":
            values = text_ids(column, pa.array(values).cast(pa.string()))
        elif step == "hours":
            values, wrong = hours_of(values)
            reject(wrong, f"{raw.field_of(column)} is not a YYMMDDHH time")
        else:
            values = _stepped(step, values)
    return values


def column_of_request(raw: RawColumns, column: str, given: Any) -> Any:
    """Return a column, made of an Arrow array of a request's values, as an Arrow array.

    A missing value that has no number is null. Raises pyarrow.ArrowException or TypeError for values of another kind.
    """
    if raw.read in KINDS:
        return _text_of_request(raw, column, given)
    if pa.types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if class_of(given.type) not in NUMBERS:
        raise TypeError(f"{raw.read} is of numbers, not {given.type}")
    if class_of(given.type) == "text":
        given = _plain_texts(raw, given)
    # Bytes have no null.
    if raw.read == "absence":
        if class_of(given.type) == "text":
            given = _parsed(NUMBER, raw, column, given)
        return pa.array(given.is_null(nan_is_null=True).to_numpy(zero_copy_only=False).astype(np.float32))
    numbers = _integers(raw, column, given) if raw.read == "integer" else _floats(raw, column, given)
    absent = numbers.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    fill = 0 if raw.missing is None else int(raw.missing) if raw.read == "integer" else raw.missing
    plain = np.where(absent, fill, numbers.fill_null(0).to_numpy(zero_copy_only=False))
    plain = plain.astype(numbers.type.to_pandas_dtype())

    def refuse(wrong: NDArray[np.bool_], reason: str) -> None:
        _refuse(wrong if raw.missing is not None else wrong & ~absent, plain, f": {reason}")

    values = made_of(raw, column, plain, refuse)
    if raw.missing is not None or not absent.any():
        return values if isinstance(values, pa.Array) else pa.array(values)
    plain = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values
    return pa.array(plain, mask=absent)


def _integers(raw: RawColumns, column: str, given: Any) -> Any:
    """Return int64, null for missing ones; refuses what is rounded already, and what a file may not have."""
    match class_of(given.type):
        case "text":
            return _parsed(INTEGER, raw, column, given)
        case "float":
            try:
                return whole_floats(given)
            except UnusableValueError as error:
                raise pa.ArrowInvalid(str(error)) from error
    values = given.cast(pa.int64())
    plain = values.fill_null(0).to_numpy(zero_copy_only=False)
    _refuse((plain <= -(10**18)) | (plain >= 10**18), values, f" is not {INTEGER.noun}")
    return values


def _floats(raw: RawColumns, column: str, given: Any) -> Any:
    """Return float64, null or NaN for missing ones; integers beyond 2^53 are rounded, as their text in a file is."""
    is_text = class_of(given.type) == "text"
    values = _parsed(NUMBER, raw, column, given) if is_text else given.cast(pa.float64(), safe=False)
    _refuse(np.isinf(values.to_numpy(zero_copy_only=False)), given, " is too large a number")
    return values


def _parsed(kind: Kind, raw: RawColumns, column: str, texts: Any) -> Any:
    """Return the values of texts as a file with them has them; refuses those that are wrong there."""
    values, flaws = values_of(kind, raw.field_of(column), texts)
    for wrong, reason in flaws:
        _refuse(wrong, texts, f": {reason}")
    return values


def _refuse(wrong: NDArray[np.bool_], given: Any, reason: str) -> None:
    """Raise pyarrow.ArrowInvalid for the first value that is wrong."""
    if wrong.any():
        first = given[int(np.argmax(wrong))]
        raise pa.ArrowInvalid(f"{repr(first.as_py())[:100] if isinstance(first, pa.Scalar) else first}{reason}")


def _plain_texts(raw: RawColumns, given: Any) -> Any:
    """Return text without the blanks that are not read, null for an empty one, as an empty field of a file."""
    texts = given.cast(pa.string())
    if raw.stripped:
        texts = pc.ascii_trim(texts, " ")
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _text_of_request(raw: RawColumns, column: str, given: Any) -> Any:
    table = raw.table_of(column)
    if raw.read == "texts":
        if pa.types.is_null(given.type):
            given = given.cast(pa.list_(pa.null()))
        if not is_list(given.type):
            raise TypeError(f"texts are a list in each sample, not {given.type}")
    kind = given.type.value_type if raw.read == "texts" else given.type
    if class_of(kind) not in KINDS[raw.read]:
        raise TypeError(f"{raw.read} is text, not {kind}")
    if raw.read == "texts":
        assert table is not None
        return _lists_of_request(raw, column, table, given)
    texts = _plain_texts(raw, given)
    if raw.read == "hexadecimal":
        return _parsed(hexadecimal(raw.digits), raw, column, texts)
    assert table is not None
    return _parsed(text_of(table), raw, column, texts)


def _lists_of_request(raw: RawColumns, column: str, table: str, given: Any) -> Any:
    """Return lists of ids, made of the text that a file would have; refuses texts that it would have as others."""
    separator = raw.separator or ""
    texts = given.flatten().cast(pa.string()).fill_null("")
    lengths = pc.fill_null(pc.list_value_length(given), 0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    joined = pc.binary_join(pa.LargeListArray.from_arrays(bounds, texts), separator)
    in_file = _parsed(BYTES, raw, column, _plain_texts(raw, joined)).cast(pa.string()).fill_null("")
    in_files = text_lists(table, pc.split_pattern(in_file, separator), raw.stripped)
    in_request = text_lists(table, given, raw.stripped)
    if not in_files.equals(in_request):
        wrong = np.array(
            [mine != theirs for mine, theirs in zip(in_files.to_pylist(), in_request.to_pylist(), strict=True)]
        )
        _refuse(wrong, given, f": {separator!r} stands between texts in a file; give those around it one by one")
    return in_files


def _stepped(step: Step, values: NDArray[Any]) -> NDArray[Any]:
    match step:
        case "log1p":
            logs: NDArray[Any] = np.log1p(values)
            return logs
        case "log_buckets":
            return log_buckets(values)
        case "float32":
            return values.astype(np.float32)
        case Subtract():
            return values - _like(values, step.subtract)
        case Divide():
            return values / _like(values, step.divide)
        case FloorDivide():
            return values // _like(values, step.floor_divide)
        case Remainder():
            return values % step.remainder
        case AtLeast():
            raised: NDArray[Any] = np.maximum(values, _like(values, step.at_least))
            return raised
    raise ValueError(f"{step} is no step of a number")


def _like(values: NDArray[Any], number: float) -> float | int:
    """Return a number as an integer among integers, which stay unchanged."""
    return int(number) if values.dtype.kind == "i" and number.is_integer() else number
