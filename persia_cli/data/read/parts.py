"""The part of each row where times, hashes or the last rows of groups make the split."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.config.schema.split import HashSplit, LastSplit, Split, TimeSplit
from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import class_of, plain_type
from persia_cli.data.read.random_bits import salt, stream, uniform
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader
from persia_cli.data.read.times import NotATimeError, from_format, microseconds, remedy
from persia_cli.data.read.values import NotAnIdError, id_values
from persia_cli.errors import DataError, count

PARTS: dict[SplitName, int] = {"train": 0, "eval": 1}
TEST = 2
_SALT = salt(0x73706C6974)
_NULL = np.uint64(0x9E3779B97F4A7C15)
"""The hash of a null."""
Parts = NDArray[np.int8]


def parts_by_time(split: TimeSplit, first_row: int, column: Any) -> Parts:
    """Return the part of each row by its time, with `eval_from` known; raises DataError."""
    times = time_values(column, split.column, split.format, lambda row: f"row {first_row + row} (from 0, of all)")
    parts = np.zeros(times.size, np.int8)
    assert split.eval_from is not None
    parts[times >= _time(split, column, "eval_from")] = PARTS["eval"]
    if split.test_from is not None:
        parts[times >= _time(split, column, "test_from")] = TEST
    return parts


def with_times(split: TimeSplit, filesystem: Any, groups: Sequence[RowGroup]) -> TimeSplit:
    """Return the split with times in place of fractions, those that give parts nearest to them; raises DataError.

    Rows of one time stay together, and no part is empty.
    """
    if split.eval_fraction is None and split.test_fraction is None:
        return split
    found, column = [np.empty(0, np.int64)], pa.array([], pa.int64())
    for group, (column,) in _columns(filesystem, groups, [split.column]):
        found.append(time_values(column, split.column, split.format, group.place_of))
    times = np.concatenate(found)
    if not times.size:
        return split.model_copy(update={"eval_from": 0, "eval_fraction": None, "test_fraction": None})
    times.sort()
    first = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]]))
    distinct = times[first]

    def given(key: Literal["eval_from", "test_from"]) -> int | None:
        """Return the number of the first distinct time of a part that begins at a given time."""
        is_given = getattr(split, key) is not None
        return int(np.searchsorted(distinct, _time(split, column, key))) if is_given else None

    def nearest(key: str, rows: float, least: int, end: int) -> int:
        """Return the number of the distinct time, in [least, end), with nearest to so many rows before it."""
        if least >= end:
            raise DataError(
                f"dataset.split.{key}: of {count(distinct.size, 'distinct time')} in column {split.column} none is "
                "left for this part; correct dataset.split, or split by rows: {kind: hash, eval_fraction: 0.2}"
            )
        return least + int(np.argmin(np.abs(first[least:end] - rows)))

    evaluates, tests = given("eval_from"), given("test_from")
    if split.test_fraction is not None:
        least = 2 if evaluates is None else evaluates + 1
        tests = nearest("test_fraction", times.size * (1.0 - split.test_fraction), least, distinct.size)
    if split.eval_fraction is not None:
        end = distinct.size if tests is None else tests
        before = times.size if end == distinct.size else int(first[end])
        evaluates = nearest("eval_fraction", before - times.size * split.eval_fraction, 1, end)
    known: dict[str, Any] = {"eval_fraction": None, "test_fraction": None}
    is_integer = _is_integer(split, column)
    for key, number, is_found in (
        ("eval_from", evaluates, split.eval_fraction is not None),
        ("test_from", tests, split.test_fraction is not None),
    ):
        if is_found and number is not None:
            known[key] = int(distinct[number]) if is_integer else str(np.datetime64(int(distinct[number]), "us"))
    return split.model_copy(update=known)


def parts_by_hash(split: HashSplit, first_row: int, table: Any) -> Parts:
    """Return the part of each row by the hash of its value, or of its number."""
    if split.column is None:
        values = np.arange(first_row, first_row + table.num_rows, dtype=np.uint64)
    else:
        values = _keys(table.column(split.column), split.column)
    place = uniform(stream(_SALT, stream(_SALT, values)))
    test = split.test_fraction or 0.0
    return np.where(place < test, TEST, place < test + split.eval_fraction).astype(np.int8)


def parts_by_last(split: LastSplit, filesystem: Any, groups: Sequence[RowGroup]) -> Parts:
    """Return the part of each row by its place in its group; reads two columns once. Raises DataError."""
    found_keys, found_nulls, found_times = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)], [np.empty(0, np.int64)]
    for group, (key, time) in _columns(filesystem, groups, [split.group, split.order]):
        found_keys.append(_keys(key, split.group))
        found_nulls.append(key.is_null().to_numpy())
        found_times.append(time_values(time, split.order, split.format, group.place_of))
    keys, nulls, times = np.concatenate(found_keys), np.concatenate(found_nulls), np.concatenate(found_times)
    order = np.lexsort((times, keys))  # stable: rows of equal times stay in the order of the files
    ordered = keys[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: keys.size]
    start = np.flatnonzero(is_first)
    sizes = np.diff(np.append(start, keys.size))
    parts = np.zeros(keys.size, np.int8)
    last = order[(start + sizes - 1)[sizes > 1]]
    parts[last] = TEST if split.test else PARTS["eval"]
    if split.test:
        parts[order[(start + sizes - 2)[sizes > 2]]] = PARTS["eval"]
    parts[nulls] = PARTS["train"]
    return parts


def time_values(column: Any, name: str, form: str | None, place_of: Callable[[int], str]) -> NDArray[np.int64]:
    """Return times as microseconds since 1970 in UTC, and integers without a format unchanged.

    Raises DataError for null or what is no time, with the place of its row.
    """
    kind = plain_type(column.type)
    column = column.cast(kind).combine_chunks()
    try:
        column = from_format(column, form)
        is_integer = class_of(column.type) == "integer"
        found = column.cast(pa.int64()) if is_integer else microseconds(column)
    except pa.ArrowInvalid as error:
        raise DataError(f"dataset.split: column {name} has integers that do not fit into 63 bits") from error
    except NotATimeError as error:
        place, correct = place_of(error.index), remedy(form).replace("leave it empty", "drop the row")
        raise DataError(f"dataset.split: {error} in {place} of column {name}; {correct}") from error
    if found.null_count:
        raise DataError(f"dataset.split: column {name} has nulls, and a row needs a time; drop or correct these rows")
    values: NDArray[np.int64] = found.to_numpy(zero_copy_only=False)
    return values


def times_in(split: Split, filesystem: Any, groups: Sequence[RowGroup]) -> str:
    """Return a clause on the first and the last time of the column that makes a split by time."""
    assert isinstance(split, TimeSplit)
    found, is_integer = [], False
    for group, (column,) in _columns(filesystem, groups, list(split.columns)):
        found.append(time_values(column, split.column, split.format, group.place_of))
        is_integer = _is_integer(split, column)
    times = np.concatenate(found)
    first, last = (each if is_integer else np.datetime64(int(each), "us").item() for each in (times.min(), times.max()))
    return f", whose {split.columns[0]} is from {first} to {last}"


def _keys(column: Any, name: str) -> NDArray[np.uint64]:
    """Return a number for each value, equal for equal values; raises DataError for values that are no ids."""
    try:
        return id_values(column, name, None, _NULL)
    except NotAnIdError as error:
        raise DataError(f"dataset.split: column {name}: {error}; split by another column") from error


def _time(split: TimeSplit, column: Any, key: Literal["eval_from", "test_from"]) -> int:
    """Return a time of the configuration as `time_values` has those of the column; raises DataError."""
    given, is_integer = getattr(split, key), _is_integer(split, column)
    if is_integer != isinstance(given, int):
        held, wanted = ("integers", "an integer") if is_integer else ("times", "a time such as 2024-02-01")
        raise DataError(f"dataset.split.{key} is {given}, but the column holds {held}; write {wanted}")
    return given if isinstance(given, int) else int(np.datetime64(given, "us").astype(np.int64))


def _is_integer(split: TimeSplit, column: Any) -> bool:
    """Return True if the column's times are integers that are compared unchanged."""
    return split.format is None and class_of(plain_type(column.type)) == "integer"


def _columns(filesystem: Any, groups: Sequence[RowGroup], names: list[str]) -> Iterator[tuple[RowGroup, list[Any]]]:
    """Yield each row group with its columns."""
    with RowGroupReader(filesystem) as reader:
        for group in groups:
            table = reader.read(group, list(dict.fromkeys(names)))
            yield group, [table.column(name) for name in names]
