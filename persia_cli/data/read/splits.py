"""The rows of the training split and of the evaluation split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.split import (
    ColumnSplit,
    EvalSplit,
    EverySplit,
    HashSplit,
    LastSplit,
    Part,
    PredictSplit,
    Split,
    TimeSplit,
)
from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import class_of, is_text, plain_type
from persia_cli.data.read.parts import PARTS, TEST, parts_by_hash, parts_by_last, parts_by_time, with_times
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader
from persia_cli.data.read.times import TIMES, microseconds

_SHOWN_VALUES = 6


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of each split in each row group, in file order."""

    train: tuple[int, ...]
    eval: tuple[int, ...]
    test: int = 0
    """Rows that are set aside for a test, of all row groups; 0 where other files have them."""
    values: tuple[str, ...] = ()
    """A few values of the split column, for messages."""

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
        return [] if isinstance(self.split, LastSplit) else list(self.split.columns)

    def rows(self, name: SplitName, first_row: int, table: Any) -> NDArray[np.int64] | None:
        """Return which rows of a table are in a split, ascending, or None for all.

        `first_row` is the number of its first row over all files; it has the columns of `columns`. Raises DataError.
        """
        split = self.split
        if isinstance(split, EverySplit):
            is_eval = (np.arange(first_row, first_row + table.num_rows) - split.offset) % split.n == 0
            return np.flatnonzero(is_eval if name == "eval" else ~is_eval)
        if isinstance(split, ColumnSplit):
            return np.flatnonzero(_of_split(table.column(split.column), split, name))
        parts = self.parts_in(first_row, table)
        # Split by files, or with all rows in one split, a row group has one split.
        return None if parts is None else np.flatnonzero(parts == PARTS[name])

    def parts_in(self, first_row: int, table: Any) -> NDArray[np.int8] | None:
        """Return the part of each row of a table, as `rows` has it, where times, hashes or groups make the split."""
        if isinstance(self.split, TimeSplit):
            return parts_by_time(self.split, first_row, table.column(self.split.column))
        if isinstance(self.split, HashSplit):
            return parts_by_hash(self.split, first_row, table)
        return None if self.parts is None else self.parts[first_row : first_row + table.num_rows]


def selector_of(split: Split, filesystem: Any, groups: Sequence[RowGroup]) -> Selector:
    """Return what finds the rows of a split, whose times are known then; raises DataError.

    Fractions by time read the column of times once and take 8 bytes a row; the last rows of groups read two columns
    and take about 40 bytes a row, and one byte afterwards.
    """
    if isinstance(split, TimeSplit):
        return Selector(with_times(split, filesystem, groups))
    if isinstance(split, LastSplit):
        return Selector(split, parts_by_last(split, filesystem, groups))
    return Selector(split)


def count_rows(selector: Selector, filesystem: Any, groups: Sequence[RowGroup]) -> SplitRows:
    """Count the rows of both splits; reads only the split column, if there is one."""
    split = selector.split
    if isinstance(split, ColumnSplit):
        return _count_by_column(split, filesystem, groups)
    if isinstance(split, EverySplit):
        evaluation = [_multiples(g.first_row - split.offset, g.rows, split.n) for g in groups]
        return SplitRows(tuple(g.rows - n for g, n in zip(groups, evaluation, strict=True)), tuple(evaluation))
    if isinstance(split, TimeSplit | HashSplit | LastSplit):
        return _count_selected(selector, filesystem, groups)
    if isinstance(split, EvalSplit | PredictSplit):
        return SplitRows((0,) * len(groups), tuple(g.rows for g in groups))
    train, evaluation = ([g.rows if g.part == name else 0 for g in groups] for name in ("train", "eval"))
    return SplitRows(tuple(train), tuple(evaluation))


def _count_selected(selector: Selector, filesystem: Any, groups: Sequence[RowGroup]) -> SplitRows:
    counts = []
    with RowGroupReader(filesystem) as reader:
        for group in groups:
            if selector.columns:
                table = reader.read(group, selector.columns)
            else:
                table = pa.table({"": pa.nulls(group.rows)})
            parts = selector.parts_in(group.first_row, table)
            assert parts is not None
            counts.append(np.bincount(parts, minlength=TEST + 1).tolist())
    return SplitRows(
        tuple(each[PARTS["train"]] for each in counts),
        tuple(each[PARTS["eval"]] for each in counts),
        sum(each[TEST] for each in counts),
    )


def _multiples(first: int, count: int, n: int) -> int:
    """Return the number of multiples of n among the integers [first, first + count)."""
    return (first + count - 1) // n - (first - 1) // n


def _count_by_column(split: ColumnSplit, filesystem: Any, groups: Sequence[RowGroup]) -> SplitRows:
    train: list[int] = []
    evaluation: list[int] = []
    values: dict[str, None] = {}
    test = 0
    with RowGroupReader(filesystem) as reader:
        for group in groups:
            column = reader.read(group, [split.column]).column(0)
            train.append(int(_of_split(column, split, "train").sum()))
            evaluation.append(int(_of_split(column, split, "eval").sum()))
            test += int(_of_split(column, split, "test").sum())
            if len(values) < _SHOWN_VALUES:
                values.update(dict.fromkeys(map(str, pc.unique(column).slice(0, _SHOWN_VALUES).to_pylist())))
    return SplitRows(tuple(train), tuple(evaluation), test, tuple(values)[:_SHOWN_VALUES])


def _of_split(column: Any, split: ColumnSplit, name: Part) -> NDArray[np.bool_]:
    """Return True for each value of the split column in a split; null is in the split of all other values, if any."""
    if split.train is None and name == "train":
        return ~_is_one_of(column, (*split.values("eval"), *split.values("test")))
    return _is_one_of(column, split.values(name))


def _is_one_of(column: Any, values: tuple[str | int, ...]) -> NDArray[np.bool_]:
    kind = plain_type(column.type)
    column = column.cast(kind)
    if class_of(kind) in TIMES:
        column, kind = pa.chunked_array([microseconds(column.combine_chunks())]), pa.int64()
        values = tuple(microseconds(pa.array(values, pa.string())).to_pylist())
    elif not is_text(kind):
        kind = pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
        column = column.cast(kind)
    matches: NDArray[np.bool_] = pc.is_in(column, pa.array(values, kind)).to_numpy()
    return matches
