"""Which rows train and which evaluate, found out from files and columns where nobody has said it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ColumnSplit, EvalSplit, EverySplit, FileSplit, PredictSplit, Split
from persia_cli.control.splits import SplitName
from persia_cli.data.columns import is_text
from persia_cli.data.files import find_files, locate
from persia_cli.data.profile.places import Place, Rows, read_rows
from persia_cli.data.rowgroup import RowGroup
from persia_cli.data.splits import selected_rows

COLUMNS = ("split", "part", "subset", "partition", "fold", "set", "phase")
"""What a column that says the split is called."""
EVALUATING = ("eval", "valid", "val", "test")
"""What files and values of the evaluation split begin with, the likeliest first; those of training with `train`."""
_MOST_VALUES = 20
_NAMES: tuple[SplitName, SplitName] = ("train", "eval")


@dataclass(frozen=True, slots=True)
class Parting:
    """How rows part into splits; `split` is None where nothing says so, and then the last fifth is told apart."""

    split: Split | None
    total: int
    by_file: dict[str, SplitName] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What makes the splits, for people."""
        if self.split is None:
            return "the last fifth of the rows, in the order of the files"
        if isinstance(self.split, ColumnSplit):
            return f"where column {self.split.column} is {self.split.eval}"
        if isinstance(self.split, FileSplit):
            return f"files {', '.join(self.split.eval)}"
        if isinstance(self.split, EverySplit):
            return f"every {self.split.n}th row, from row {self.split.offset} on"
        return "all rows evaluate"

    def parts(self, rows: Rows) -> Iterator[tuple[SplitName, NDArray[np.int64] | None]]:
        """Yield each split that rows of a batch belong to, and which ones; None for all."""
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
                if self.by_file.get(rows.file.path) == name:
                    yield name, None
            else:
                which = selected_rows(self.split, name, group, column)
                if which is None or which.size:
                    yield name, which


def parting_of(place: Place, split: Split | None) -> Parting:
    """Return the parting that `split` says, or else the columns' values, or else the files' names."""
    split = split or _by_column(place) or _by_name(place)
    by_file: dict[str, SplitName] = {}
    if isinstance(split, FileSplit):
        root = locate(place.path)
        for name, patterns in zip(_NAMES, (split.train, split.eval), strict=True):
            by_file |= {file.path: name for pattern in patterns for file in find_files(root.below(pattern))}
    return Parting(split, sum(place.rows), by_file)


def _by_column(place: Place) -> ColumnSplit | None:
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


def _by_name(place: Place) -> FileSplit | None:
    location = locate(place.path)
    if location.is_pattern:
        return None  # a split by files is relative to a folder
    root = PurePosixPath(location.path)
    tops = {PurePosixPath(file.path).relative_to(root).parts[:1] for file in place.files}
    train, evaluation = _pair(sorted(top[0] for top in tops if top))
    if not train or not evaluation:
        return None
    word = next(word for word in EVALUATING if evaluation.lower().startswith(word))
    return FileSplit(kind="files", train=(f"{train[:5]}*",), eval=(f"{evaluation[: len(word)]}*",))


def _pair(names: list[str]) -> tuple[str | None, str | None]:
    """Return the names that begin like those of the training and of the evaluation split."""
    train = next((name for name in names if name.lower().startswith("train")), None)
    for word in EVALUATING:
        for name in names:
            if name.lower().startswith(word):
                return train, name
    return train, None
