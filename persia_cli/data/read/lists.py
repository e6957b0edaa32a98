"""Lists in columns: texts that hold several ids, and vectors of numbers; whole arrays at a time."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.data.read.arrow_types import class_of, is_list, plain_type
from persia_cli.data.read.values import float_values

_BLANKS = " \t"


class WrongLengthError(Exception):
    """Lists of another length than all others, and their rows, int64."""

    def __init__(self, rows: NDArray[np.int64], length: int) -> None:
        super().__init__(f"a list of {length} numbers" if length else "an empty list")
        self.rows, self.length = rows, length


def split_texts(column: Any, separator: str) -> Any:
    """Return a chunked array of texts as lists of texts, which have no blanks around them and are not empty.

    A null text is an empty list, for CSV has no other. Texts in lists are split too, and nulls among them left out.
    Other values are lists of one, as integers in CSV whose texts all have one id; other lists are returned unchanged.
    """
    kind = plain_type(column.type)
    if is_list(kind) and class_of(kind.value_type) == "text":
        column = column.cast(pa.list_(pa.string()))
        plain = (with_values(chunk, chunk.flatten().fill_null("")) for chunk in column.chunks)
        column = pa.chunked_array(
            [pc.binary_join(chunk, separator).cast(pa.large_string()) for chunk in plain], pa.large_string()
        )
    elif is_list(kind):
        return column
    elif class_of(kind) != "text":
        return pa.chunked_array([_lists_of_one(chunk) for chunk in column.cast(kind).chunks], pa.large_list(kind))
    chunks = [_split(chunk, separator) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.large_list(pa.large_string()))


def _lists_of_one(values: Any) -> Any:
    ends = np.cumsum(values.is_valid().to_numpy(zero_copy_only=False))
    return pa.LargeListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int64)), values.drop_null())


def with_values(lists: Any, values: Any) -> Any:
    """Return an Arrow array of lists with as many other values in place of the present ones."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _split(texts: Any, separator: str) -> Any:
    if pa.types.is_dictionary(texts.type):
        if texts.null_count:
            return _split(texts.dictionary_decode(), separator)
        return _split(texts.dictionary, separator).take(texts.indices)
    lists = pc.split_pattern(texts.cast(pa.large_string()), separator)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    values = pc.utf8_trim(lists.flatten(), _BLANKS)
    kept = pc.not_equal(values, "")
    before = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))])
    offsets = before[np.concatenate([[0], np.cumsum(lengths)])].astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values.filter(kept))


def vectors(column: Any, width: int) -> NDArray[np.float64]:
    """Return the numbers of a chunked array of lists, [n, width]; NaN for a null list and for null in a list.

    Raises WrongLengthError for lists of another length.
    """
    if pa.types.is_null(column.type):
        return np.full((len(column), width), np.nan)
    if not is_list(column.type):
        raise TypeError(f"{column.type} is no list")
    array = column.combine_chunks()
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(array).fill_null(width).to_numpy(zero_copy_only=False)
    if (wrong := np.flatnonzero(lengths != width)).size:
        raise WrongLengthError(wrong, int(lengths[wrong[0]]))
    numbers = np.full((len(array), width), np.nan)
    numbers[is_valid] = float_values(array.flatten()).reshape(-1, width)
    return numbers
