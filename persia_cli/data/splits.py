"""The rows of the training split and of the evaluation split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.split import ColumnSplit, EvalSplit, EverySplit, PredictSplit, Split
from persia_cli.control.position import SplitName
from persia_cli.data.arrow_types import class_of, is_text, plain_type
from persia_cli.data.row_groups import RowGroup, RowGroupReader

_SHOWN_VALUES = 6


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of each split in each row group, in file order."""

    train: tuple[int, ...]
    eval: tuple[int, ...]
    values: tuple[str, ...] = ()
    """A few values of the split column, for messages."""

    def of(self, name: SplitName) -> tuple[int, ...]:
        """Return one split's rows in each row group."""
        return self.train if name == "train" else self.eval


def split_columns(split: Split) -> list[str]:
    """Return the columns that decide which split a row is in."""
    return [split.column] if isinstance(split, ColumnSplit) else []


def selected_rows(split: Split, name: SplitName, first_row: int, table: Any) -> NDArray[np.int64] | None:
    """Return which rows of a table are in a split, ascending, or None for all.

    `first_row` is the number of its first row over all files; it has the columns of `split_columns`.
    """
    if isinstance(split, EverySplit):
        is_eval = (np.arange(first_row, first_row + table.num_rows) - split.offset) % split.n == 0
        return np.flatnonzero(is_eval if name == "eval" else ~is_eval)
    if isinstance(split, ColumnSplit):
        return np.flatnonzero(_of_split(table.column(split.column), split, name))
    return None  # split by files, or all rows in one split: a row group has one split


def count_rows(split: Split, filesystem: Any, groups: Sequence[RowGroup]) -> SplitRows:
    """Count the rows of both splits; reads only the split column, if there is one."""
    if isinstance(split, ColumnSplit):
        return _count_by_column(split, filesystem, groups)
    if isinstance(split, EverySplit):
        evaluation = [_multiples(g.first_row - split.offset, g.rows, split.n) for g in groups]
        return SplitRows(tuple(g.rows - n for g, n in zip(groups, evaluation, strict=True)), tuple(evaluation))
    if isinstance(split, EvalSplit | PredictSplit):
        return SplitRows((0,) * len(groups), tuple(g.rows for g in groups))
    train, evaluation = ([g.rows if g.part == name else 0 for g in groups] for name in ("train", "eval"))
    return SplitRows(tuple(train), tuple(evaluation))


def _multiples(first: int, count: int, n: int) -> int:
    """Return the number of multiples of n among the integers [first, first + count)."""
    return (first + count - 1) // n - (first - 1) // n


def _count_by_column(split: ColumnSplit, filesystem: Any, groups: Sequence[RowGroup]) -> SplitRows:
    train: list[int] = []
    evaluation: list[int] = []
    values: dict[str, None] = {}
    with RowGroupReader(filesystem) as reader:
        for group in groups:
            column = reader.read(group, [split.column]).column(0)
            train.append(int(_of_split(column, split, "train").sum()))
            evaluation.append(int(_of_split(column, split, "eval").sum()))
            if len(values) < _SHOWN_VALUES:
                values.update(dict.fromkeys(map(str, pc.unique(column).slice(0, _SHOWN_VALUES).to_pylist())))
    return SplitRows(tuple(train), tuple(evaluation), tuple(values)[:_SHOWN_VALUES])


def _of_split(column: Any, split: ColumnSplit, name: SplitName) -> NDArray[np.bool_]:
    """Return True for each value of the split column in a split; null is in the split of all other values, if any."""
    if split.train is None and name == "train":
        return ~_of_split(column, split, "eval")
    kind = plain_type(column.type)
    column = column.cast(kind)
    if class_of(kind) == "date":
        kind = pa.string()
        column = column.cast(pa.date32()).cast(kind)
    elif not is_text(kind):
        kind = pa.uint64() if pa.types.is_uint64(kind) else pa.int64()
        column = column.cast(kind)
    matches: NDArray[np.bool_] = pc.is_in(column, pa.array(split.values(name), kind)).to_numpy()
    return matches
