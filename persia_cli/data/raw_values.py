"""Columns made of fields as a source has them, by the declarations of `persia_cli.config.schema.raw`."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.raw import AtLeast, Divide, FloorDivide, RawColumns, Step, Subtract
from persia_cli.data.arrow_types import class_of
from persia_cli.data.ids import text_buffers, text_ids


def log_buckets(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(log(x)^2) for x above 2 and x itself elsewhere: fine buckets for small counts, coarse for large.

    (Y. Juan, W.-S. Chin, Y. Zhuang and M. Jahrer, the winners of Criteo's challenge, 2014.)
    """
    return np.where(values > 2, np.floor(np.log(np.maximum(values, 3)) ** 2), values).astype(np.int64)


def made_of(raw: RawColumns, column: str, values: Any) -> Any:
    """Return a column, made of its field's numbers [n] or of ids as an Arrow array."""
    for step in raw.steps:
        values = text_ids(column, pa.array(values).cast(pa.string())) if step == "text" else _stepped(step, values)
    return values


def column_of_request(raw: RawColumns, column: str, given: Any) -> Any:
    """Return a column, made of an Arrow array of a request's values, as an Arrow array.

    A missing value that has no number is null. Raises pyarrow.ArrowException or TypeError for values of another kind.
    """
    kinds = {"text": ("text", "integer", "null"), "hexadecimal": ("text", "null")}.get(raw.read)
    if kinds is not None and class_of(given.type) not in kinds:
        raise TypeError(f"{raw.read} is text, not {given.type}")
    if raw.read == "text":
        return text_ids(raw.field_of(column), given.cast(pa.string()))
    if raw.read == "hexadecimal":
        return _hexadecimal(given.cast(pa.string()), raw.digits)
    kind = pa.int64() if raw.read == "integer" else pa.float64()
    numbers = given.cast(kind)
    absent = numbers.is_null().to_numpy(zero_copy_only=False)
    fill = 0 if raw.missing is None else int(raw.missing) if raw.read == "integer" else raw.missing
    values = made_of(raw, column, numbers.fill_null(fill).to_numpy(zero_copy_only=False))
    if raw.missing is not None or not absent.any():
        return values if isinstance(values, pa.Array) else pa.array(values)
    plain = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values
    return pa.array(plain, mask=absent)


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
        case AtLeast():
            raised: NDArray[Any] = np.maximum(values, _like(values, step.at_least))
            return raised
    raise ValueError(f"{step} is no step of a number")


def _like(values: NDArray[Any], number: float) -> float | int:
    """Return a number as an integer beside integers, which so stay what they are."""
    return int(number) if values.dtype.kind == "i" and number.is_integer() else number


def _hexadecimal(texts: Any, digits: int) -> Any:
    from persia_cli.kernels.text import parse_hexadecimal

    ids, good = np.empty(len(texts), np.uint64), np.empty(len(texts), np.bool_)
    parse_hexadecimal(*text_buffers(texts), np.uint64(digits), ids, good)
    if not (good | texts.is_null().to_numpy(zero_copy_only=False)).all():
        raise pa.ArrowInvalid(
            f"{texts[int(np.argmin(good))].as_py()!r} is not {digits or '1 to 16'} hexadecimal digits"
        )
    return pa.array(ids, mask=~good)
