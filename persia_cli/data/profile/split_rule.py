"""The rule that splits rows into training and evaluation, found from files and columns if the user gives none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.split import ColumnSplit, EvalSplit, EverySplit, FileSplit, PredictSplit, Split
from persia_cli.control.position import SplitName
from persia_cli.data.arrow_types import is_text
from persia_cli.data.files import find_files, locate
from persia_cli.data.profile.places import RowSpan, SourceFiles, read_rows
from persia_cli.data.row_groups import RowGroup
from persia_cli.data.splits import selected_rows

COLUMNS = ("split", "part", "subset", "partition", "fold", "set", "phase")
"""Usual names of columns that name the split."""
EVALUATING = ("eval", "valid", "val", "test")
"""Usual beginnings of evaluation files and values, the most likely first; those of training begin with `train`."""
_MOST_VALUES = 20
_NAMES: tuple[SplitName, SplitName] = ("train", "eval")


@dataclass(frozen=True, slots=True)
class SplitRule:
    """The rule that splits rows; `split` is None if nothing defines one, then the last fifth counts as evaluation."""

    split: Split | None
    total: int
    by_file: dict[str, SplitName] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.split is None:
            return "the last fifth of the rows, in the order of the files"
        if isinstance(self.split, ColumnSplit):
            return f"where column {self.split.column} is {self.split.eval}"
        if isinstance(self.split, FileSplit):
            return f"files {', '.join(self.split.eval)}"
        if isinstance(self.split, EverySplit):
            return f"every {self.split.n}th row, from row {self.split.offset} on"
        return "all rows evaluate"

    def parts(self, rows: RowSpan) -> Iterator[tuple[SplitName, NDArray[np.int64] | None]]:
        """Yield each split that has rows of a batch, and the indices of these rows, or None for all."""
        if self.split is None:
            cut = int(np.clip(self.total * 4 // 5 - rows.first, 0, rows.batch.num_rows))
            for name, chosen in zip(_NAMES, np.split(np.arange(rows.batch.num_rows), [cut]), strict=True):
                if chosen.size:
                    yield name, chosen if chosen.size < rows.batch.num_rows else None
            return
        if isinstance(self.split, EvalSplit | PredictSplit):
            yield "eval", None
            return
        group = RowGroup(rows.file.path, 0, rows.first, rows.batch.num_rows)
        column = None
        if isinstance(self.split, ColumnSplit):
            column = pa.chunked_array([rows.batch.column(self.split.column)])
        for name in _NAMES:
            if isinstance(self.split, FileSplit):
                if self.by_file.get(rows.file.name) == name:
                    yield name, None
            else:
                which = selected_rows(self.split, name, group, column)
                if which is None or which.size:
                    yield name, which


def split_rule_of(place: SourceFiles, split: Split | None) -> SplitRule:
    """Return the rule of `split`; without it that of the columns' values, or else of the files' names."""
    split = split or _by_column(place) or _by_name(place)
    by_file: dict[str, SplitName] = {}
    if isinstance(split, FileSplit):
        root = locate(place.path)
        for name, patterns in zip(_NAMES, (split.train, split.eval), strict=True):
            by_file |= {file.path: name for pattern in patterns for file in find_files(root.below(pattern))}
    return SplitRule(split, sum(place.rows), by_file)


def _by_column(place: SourceFiles) -> ColumnSplit | None:
    for name in COLUMNS:
        if name not in place.schema.names:
            continue
        kind = place.schema.field(name).type
        if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
            continue
        values: set[str] = set()
        for rows in read_rows(place, [name]):
            found = pc.unique(rows.batch.column(name)).to_pylist()
            values |= {value if isinstance(value, str) else "" for value in found}
            if len(values) > _MOST_VALUES:
                break
        train, evaluation = _pair(sorted(values))
        if train and evaluation:
            return ColumnSplit(kind="column", column=name, train=train, eval=evaluation)
    return None


def _by_name(place: SourceFiles) -> FileSplit | None:
    location = locate(place.path)
    if location.is_pattern:
        return None  # patterns of a split by files are relative to a folder
    root = PurePosixPath(location.path)
    tops = {PurePosixPath(file.name).relative_to(root).parts[:1] for file in place.files}
    train, evaluation = _pair(sorted(top[0] for top in tops if top))
    if not train or not evaluation:
        return None
    word = next(word for word in EVALUATING if evaluation.lower().startswith(word))
    return FileSplit(kind="files", train=(f"{train[:5]}*",), eval=(f"{evaluation[: len(word)]}*",))


def _pair(names: list[str]) -> tuple[str | None, str | None]:
    """Return the names of the training and of the evaluation split by their usual beginnings."""
    train = next((name for name in names if name.lower().startswith("train")), None)
    for word in EVALUATING:
        for name in names:
            if name.lower().startswith(word):
                return train, name
    return train, None
