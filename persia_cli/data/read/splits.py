"""The part of each row: training, evaluation, test, or none.

A split by files, or of all rows, gives each row group one part. All others give each row one (`Selector.parts_in`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.split import (
    ColumnSplit,
    EvalSplit,
    EverySplit,
    FileSplit,
    HashSplit,
    LastSplit,
    Part,
    PredictSplit,
    Split,
    TimeSplit,
    TrainSplit,
)
from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import UnusableValueError, class_of, is_text, plain_type
from persia_cli.data.read.random_bits import salt, stream, uniform
from persia_cli.data.read.row_groups import GroupedRows, RowGroup
from persia_cli.data.read.times import TIMES, microseconds, remedy, time_integers
from persia_cli.data.read.values import id_values
from persia_cli.errors import DataError, count

PARTS: dict[Part, int] = {"train": 0, "eval": 1, "test": 2}
UNUSED = 3
"""The part of a row that is in no split."""
IN_WINDOW = 4
"""The part of a training row that is no sample, but an event of windows."""
_SHOWN_VALUES = 6
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
        parts[times >= _time(split, column, "test_from")] = PARTS["test"]
    return parts


def with_times(split: TimeSplit, rows: GroupedRows) -> TimeSplit:
    """Return the split with times in place of fractions, those that give parts nearest to them; raises DataError.

    Rows of one time stay together, and no part is empty.
    """
    if split.eval_fraction is None and split.test_fraction is None:
        return split
    times_of_groups, column = [np.empty(0, np.int64)], pa.array([], pa.int64())
    for group, table in rows.read([split.column]):
        column = table.column(0)
        times_of_groups.append(time_values(column, split.column, split.format, group.place_of))
    times = np.concatenate(times_of_groups)
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
    for key, number, is_open in (
        ("eval_from", evaluates, split.eval_fraction is not None),
        ("test_from", tests, split.test_fraction is not None),
    ):
        if is_open and number is not None:
            known[key] = int(distinct[number]) if is_integer else str(np.datetime64(int(distinct[number]), "us"))
    return split.model_copy(update=known)


def parts_by_hash(split: HashSplit, first_row: int, table: Any) -> Parts:
    """Return the part of each row by the hash of its value, or of its number."""
    if split.column is None:
        values = np.arange(first_row, first_row + table.num_rows, dtype=np.uint64)
    else:
        values = _keys(table.column(split.column), split.column)
    chance = uniform(stream(_SALT, stream(_SALT, values)))
    test = split.test_fraction or 0.0
    return np.where(chance < test, PARTS["test"], chance < test + split.eval_fraction).astype(np.int8)


def parts_by_last(split: LastSplit, rows: GroupedRows) -> Parts:
    """Return the part of each row by its place in its group; reads two columns once. Raises DataError."""
    columns: list[tuple[Any, ...]] = [(np.empty(0, np.uint64), np.empty(0, np.bool_), np.empty(0, np.int64))]
    for group, table in rows.read([split.group, split.order]):
        key = table.column(split.group)
        times = time_values(table.column(split.order), split.order, split.format, group.place_of)
        columns.append((_keys(key, split.group), key.is_null().to_numpy(), times))
    keys, nulls, times = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((times, keys))  # stable: rows of equal times stay in the order of the files
    ordered = keys[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: keys.size]
    start = np.flatnonzero(is_first)
    sizes = np.diff(np.append(start, keys.size))
    parts = np.zeros(keys.size, np.int8)
    last = order[(start + sizes - 1)[sizes > 1]]
    parts[last] = PARTS["test"] if split.test else PARTS["eval"]
    if split.test:
        parts[order[(start + sizes - 2)[sizes > 2]]] = PARTS["eval"]
    parts[nulls] = PARTS["train"]
    return parts


def time_values(column: Any, name: str, form: str | None, place_of: Callable[[int], str]) -> NDArray[np.int64]:
    """Return times as microseconds since 1970 in UTC, and integers without a format unchanged.

    Raises DataError for null or what is no time, with the place of its row.
    """
    try:
        times = time_integers(column, form)
    except pa.ArrowInvalid as error:
        raise DataError(f"dataset.split: column {name} has integers that do not fit into 63 bits") from error
    except UnusableValueError as error:
        position, correct = place_of(error.index), remedy(form).replace("leave it empty", "drop the row")
        raise DataError(f"dataset.split: {error} in {position} of column {name}; {correct}") from error
    if times.null_count:
        raise DataError(f"dataset.split: column {name} has nulls, and a row needs a time; drop or correct these rows")
    values: NDArray[np.int64] = times.to_numpy(zero_copy_only=False)
    return values


def values_in(split: Split, rows: GroupedRows) -> str:
    """Return a few values of the column of a split by column, or the first and the last time of one by time."""
    if isinstance(split, ColumnSplit):
        values: dict[str, None] = {}
        for _, table in rows.read([split.column]):
            values.update(dict.fromkeys(map(str, pc.unique(table.column(0)).slice(0, _SHOWN_VALUES).to_pylist())))
            if len(values) >= _SHOWN_VALUES:
                break
        return ", ".join([*values][:_SHOWN_VALUES])
    assert isinstance(split, TimeSplit)
    times_of_groups, is_integer = [], False
    for group, table in rows.read([split.column]):
        times_of_groups.append(time_values(table.column(0), split.column, split.format, group.place_of))
        is_integer = _is_integer(split, table.column(0))
    times = np.concatenate(times_of_groups)
    first, last = (time if is_integer else np.datetime64(int(time), "us").item() for time in (times.min(), times.max()))
    return f"from {first} to {last}"


def _keys(column: Any, name: str) -> NDArray[np.uint64]:
    """Return a number for each value, equal for equal values; raises DataError for values that are no ids."""
    try:
        return id_values(column, name, None, _NULL)
    except UnusableValueError as error:
        raise DataError(f"dataset.split: column {name}: {error}; split by another column") from error


def _time(split: TimeSplit, column: Any, key: Literal["eval_from", "test_from"]) -> int:
    """Return a time of the configuration as `time_values` has those of the column; raises DataError."""
    given, is_integer = getattr(split, key), _is_integer(split, column)
    if is_integer != isinstance(given, int):
        there, wanted = ("integers", "an integer") if is_integer else ("times", "a time such as 2024-02-01")
        raise DataError(f"dataset.split.{key} is {given}, but the column holds {there}; write {wanted}")
    return given if isinstance(given, int) else int(np.datetime64(given, "us").astype(np.int64))


def _is_integer(split: TimeSplit, column: Any) -> bool:
    """Return True if the column's times are integers that are compared unchanged."""
    return split.format is None and class_of(plain_type(column.type)) == "integer"


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of each split in each row group, in file order."""

    train: tuple[int, ...]
    eval: tuple[int, ...]
    test: int = 0
    """Rows that are set aside for a test, of all row groups; 0 where other files have them."""
    in_window: int = 0
    """Training rows, of all row groups, that are no samples but events of windows."""

    def of(self, name: SplitName) -> tuple[int, ...]:
        """Return one split's rows in each row group."""
        return self.train if name == "train" else self.eval


@dataclass(frozen=True, slots=True)
class Selector:
    """Finds the rows of a split; `parts` holds the part of each row, where only all rows together show it."""

    split: Split
    parts: NDArray[np.int8] | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that decide which split a row is in."""
        return [] if self.parts is not None else list(self.split.columns)

    def rows(self, name: SplitName, first_row: int, table: Any) -> NDArray[np.int64] | None:
        """Return which rows of a table are in a split, ascending, or None for all.

        `first_row` is the number of its first row over all files; it has the columns of `columns`. Raises DataError.
        """
        parts = self.parts_in(first_row, table)
        return None if parts is None else np.flatnonzero(parts == PARTS[name])

    def parts_in(self, first_row: int, table: Any) -> Parts | None:
        """Return the part of each row of a table, as `rows` has it; None if a row group has one part."""
        if self.parts is not None:
            return self.parts[first_row : first_row + table.num_rows]
        match self.split:
            case EverySplit(n=n, offset=offset):
                is_eval: NDArray[np.bool_] = (np.arange(first_row, first_row + table.num_rows) - offset) % n == 0
                return is_eval.astype(np.int8)
            case ColumnSplit():
                return parts_by_column(self.split, table.column(self.split.column))
            case TimeSplit():
                return parts_by_time(self.split, first_row, table.column(self.split.column))
            case HashSplit():
                return parts_by_hash(self.split, first_row, table)
        return None


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The training rows of a data set, so many in each row group."""

    data: GroupedRows
    selector: Selector
    counts: Sequence[int]

    @property
    def total(self) -> int:
        """Number of training rows."""
        return sum(self.counts)

    @property
    def groups(self) -> list[RowGroup]:
        """The row groups that have training rows."""
        return [group for group, count in zip(self.data.groups, self.counts, strict=True) if count]

    def some(self, every: int) -> "TrainingRows":
        """Return those of every `every`-th row group."""
        return TrainingRows(self.data._replace(groups=self.data.groups[::every]), self.selector, self.counts[::every])

    def read(self, columns: Iterable[str]) -> Iterator[tuple[RowGroup, Any, NDArray[np.int64] | None]]:
        """Yield each of `groups` with a table of these columns, and the training rows in it, None for all."""
        for group, table in self.data._replace(groups=self.groups).read([*columns, *self.selector.columns]):
            yield group, table, self.selector.rows("train", group.first_row, table)


def selector_of(split: Split, rows: GroupedRows) -> Selector:
    """Return what finds the rows of a split, whose times are known then; raises DataError.

    Fractions by time read the column of times once and take 8 bytes a row; the last rows of groups read two columns
    and take about 40 bytes a row, and one byte afterwards.
    """
    if isinstance(split, TimeSplit):
        return Selector(with_times(split, rows))
    if isinstance(split, LastSplit):
        return Selector(split, parts_by_last(split, rows))
    return Selector(split)


def count_rows(selector: Selector, rows: GroupedRows) -> SplitRows:
    """Count the rows of each split; reads only the columns that make it, if there are any."""
    split, is_known = selector.split, selector.parts is not None
    if isinstance(split, EverySplit) and not is_known:
        evaluation = [_multiples(g.first_row - split.offset, g.rows, split.n) for g in rows.groups]
        return SplitRows(tuple(g.rows - n for g, n in zip(rows.groups, evaluation, strict=True)), tuple(evaluation))
    if isinstance(split, EvalSplit | PredictSplit):
        return SplitRows((0,) * len(rows.groups), tuple(g.rows for g in rows.groups))
    if isinstance(split, TrainSplit) and not is_known:
        return SplitRows(tuple(g.rows for g in rows.groups), (0,) * len(rows.groups))
    if isinstance(split, FileSplit) and not is_known:
        train, evaluation = ([g.rows if g.part == name else 0 for g in rows.groups] for name in ("train", "eval"))
        return SplitRows(tuple(train), tuple(evaluation))
    counts = np.zeros((len(rows.groups), IN_WINDOW + 1), np.int64)
    for of_group, parts in zip(counts, _parts_of_groups(selector, rows), strict=True):
        of_group += np.bincount(parts, minlength=IN_WINDOW + 1)
    train, evaluation, test, _, in_window = counts.T.tolist()
    return SplitRows(tuple(train), tuple(evaluation), sum(test), sum(in_window))


def all_parts(selector: Selector, rows: GroupedRows) -> Parts:
    """Return the part of every row; reads as `count_rows` does."""
    return np.concatenate([np.empty(0, np.int8), *_parts_of_groups(selector, rows)])


def _parts_of_groups(selector: Selector, rows: GroupedRows) -> Iterator[Parts]:
    if selector.columns:
        tables = rows.read(selector.columns)
    else:
        tables = ((group, pa.table({"": pa.nulls(group.rows)})) for group in rows.groups)
    for group, table in tables:
        parts = selector.parts_in(group.first_row, table)
        yield np.full(group.rows, PARTS[group.part or "train"], np.int8) if parts is None else parts


def _multiples(first: int, count: int, n: int) -> int:
    """Return the number of multiples of n among the integers [first, first + count)."""
    return (first + count - 1) // n - (first - 1) // n


def parts_by_column(split: ColumnSplit, column: Any) -> Parts:
    """Return the part of each row by its value; null is in the part of all other values, if any."""
    kind, values = plain_type(column.type), [value for name in PARTS for value in split.values(name)]
    column = column.cast(kind)
    if class_of(kind) in TIMES:
        column, known = microseconds(column.combine_chunks()), microseconds(pa.array(values, pa.string()))
    else:
        kind = kind if is_text(kind) or pa.types.is_uint64(kind) else pa.int64()
        column, known = column.cast(kind), pa.array(values, kind)
    parts = [part for name, part in PARTS.items() for _ in split.values(name)]
    parts.append(PARTS["train"] if split.train is None else UNUSED)
    numbers: NDArray[np.int32] = pc.index_in(column, known).fill_null(len(values)).to_numpy()
    return np.array(parts, np.int8)[numbers]
