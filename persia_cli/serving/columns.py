"""The columns of a request as received: lists, arrays, lists of ids, and columns made of several fields at once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.ids import NULL_ID
from persia_cli.data.read.raw_values import column_of_request
from persia_cli.errors import DataError, one_line


class _Request:
    """The request, as errors name it and its samples."""

    def __str__(self) -> str:
        return "the request"

    def place_of(self, sample: int) -> str:
        """Return the position of a sample: all numbers of samples count from 0, as the indexes of JSON arrays do."""
        return f"sample {sample} (the first is 0)"


WHERE = _Request()


class Lists(NamedTuple):
    """Lists of ids: the ids of all samples, and the length of each list."""

    values: Any
    lengths: NDArray[np.integer[Any]]


def with_lists(columns: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return a request's columns with `Lists` in place of arrays of two dimensions, in the fields that take lists."""
    with_ids = {
        name: Lists(column.reshape(-1), np.full(column.shape[0], column.shape[1], np.int64))
        for name, column in columns.items()
        if name in names and isinstance(column, np.ndarray) and column.ndim == 2
    }
    return {**columns, **with_ids} if with_ids else columns


class ComputedColumns:
    """The data set's columns of a request, computed from its fields if declared so.

    All columns of a declaration whose values are of one type are computed in one pass: dozens cost little more than
    one.
    """

    def __init__(
        self,
        raw: Mapping[str, RawColumns],
        given: Mapping[str, Any],
        read: Callable[[str, Any], Any] = lambda name, column: column,
    ) -> None:
        """`read` makes a column, by its name, of a request's field without a declaration."""
        self._raw, self._given, self._read = raw, given, read
        self._made: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        """Return a column; raises DataError for values that do not fit it."""
        if name in self._made:
            return self._made[name]
        raw = self._raw.get(name)
        if raw is None:
            self._made[name] = self._read(name, self._given[name])
        else:
            self._made |= self._columns(raw) if raw.is_same_for_all else {name: self._alone(raw, name)}
        return self._made[name]

    def _columns(self, raw: RawColumns) -> dict[str, Any]:
        """Return the columns of a declaration whose fields the request has."""
        arrays = {name: self._array(raw, name) for name in raw.columns if raw.field_of(name) in self._given}
        kinds = list(dict.fromkeys(array.type for array in arrays.values() if not pa.types.is_null(array.type)))
        columns: dict[str, Any] = {}
        for kind in kinds or [pa.null()]:
            # A column of nulls has no type, and is handled with the first one.
            with_nulls = not kinds or kind == kinds[0]
            names = [
                name for name, array in arrays.items() if array.type == kind or (array.type == pa.null() and with_nulls)
            ]
            try:
                joined = pa.concat_arrays([arrays[name].cast(kind) for name in names])
                whole = column_of_request(raw, names[0], joined)
            except (pa.ArrowException, TypeError):
                columns |= {name: self._alone(raw, name) for name in names}  # one of them names the field
                continue
            ends = np.cumsum([len(arrays[name]) for name in names]).tolist()
            for name, begin, end in zip(names, [0, *ends], ends, strict=False):
                columns[name] = _plain(whole.slice(begin, end - begin))
        return columns

    def _alone(self, raw: RawColumns, name: str) -> Any:
        try:
            return column_of_request(raw, name, self._array(raw, name))
        except (pa.ArrowException, TypeError) as error:
            field = raw.field_of(name)
            raise DataError(f"{WHERE}: field {field} has a value that is no {raw.read}, {one_line(error)}") from error

    def _array(self, raw: RawColumns, name: str) -> Any:
        field = raw.field_of(name)
        return arrow_column(self._given[field], field, raw.read == "texts").combine_chunks()


def _plain(array: Any) -> Any:
    """Return numbers without nulls as a numpy array, which needs no decoding."""
    is_number = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    return array.to_numpy() if is_number and not array.null_count else array


def rows_of(column: Any, name: str) -> int:
    """Return the number of samples of a column; raises DataError for a column without one value for each sample."""
    if type(column) is np.ndarray and column.ndim == 1:
        return column.size
    if isinstance(column, Lists):
        lengths = np.asarray(column.lengths)
        if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu") or (lengths < 0).any():
            raise DataError(f"{WHERE}: the lengths of field {name} have to be integers from 0 on, one for each sample")
        if (ids := rows_of(column.values, name)) != lengths.sum():
            raise DataError(f"{WHERE}: the lengths of field {name} add up to {lengths.sum()}, and it has {ids} ids")
        return lengths.size
    if isinstance(column, (list, tuple, pa.Array, pa.ChunkedArray)) or getattr(column, "ndim", 0) == 1:
        return len(column)
    dimensions = getattr(column, "ndim", 0)
    what = f"an array of {dimensions} dimensions" if dimensions else type(column).__name__
    raise DataError(f"{WHERE}: field {name} has to be a list with a value for each sample, and is {what}")


def arrow_column(column: Any, name: str, is_list: bool = False) -> Any:
    """Return a column as a chunked Arrow array; raises DataError for values of several types."""
    try:
        if isinstance(column, pa.ChunkedArray):
            return column
        if isinstance(column, Lists):
            bounds = np.concatenate([[0], np.cumsum(column.lengths)]).astype(np.int64)
            array = pa.LargeListArray.from_arrays(pa.array(bounds), _inferred(column.values, False))
        else:
            array = column if isinstance(column, pa.Array) else _inferred(column, is_list)
        if is_list and pa.types.is_null(array.type):
            array = array.cast(pa.list_(pa.null()))
        return pa.chunked_array([array])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{WHERE}: the values of field {name} do not fit together, {one_line(error)}") from error


def _inferred(values: Any, is_list: bool) -> Any:
    """Return values as an Arrow array; pyarrow alone does not find the type of integers from 2^63 on.

    Arrays of numbers have no null: `NULL_ID` stands for it there.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and (null := values == NULL_ID).any():
        return pa.array(values, mask=null)
    try:
        return pa.array(values)
    except OverflowError:
        try:
            return pa.array(values, pa.list_(pa.uint64()) if is_list else pa.uint64())
        except OverflowError as error:
            raise OverflowError(
                "an integer has more than 64 bits, or is negative in a list with one from 2^63 on"
            ) from error


def columns_of(rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, list[Any]]:
    """Return the columns `names` of a request's rows; raises DataError for a row without one of these fields.

    So a row's predictions do not depend on the fields of its neighbours.
    """
    try:
        return {name: [row[name] for row in rows] for name in names}
    except KeyError:
        number, missing = next(
            (number, name) for number, row in enumerate(rows) for name in names if name not in row
        )  # fmt: skip
        raise DataError(
            f"{WHERE} has no field {missing} in {WHERE.place_of(number)}; give it in each row, null for a missing value"
        ) from None
