"""A data set in figures: one pass over its rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from persia_cli.config.schema.dataset import Split
from persia_cli.control.splits import SplitName
from persia_cli.data.hashing import mix64
from persia_cli.data.profile.cardinality import Cardinality
from persia_cli.data.profile.column import ColumnSketch, Kind, kind_of, type_name
from persia_cli.data.profile.drift import Drift, drift_between
from persia_cli.data.profile.numbers import LengthFigures, NumberFigures
from persia_cli.data.profile.parting import Parting, parting_of
from persia_cli.data.profile.places import Place, Rows, open_place, read_rows
from persia_cli.data.profile.tally import KeySample, Tally

SAMPLED_ROWS = 1 << 15
"""Rows of a split that numbers are sampled from, about; all if it has fewer."""
TOP = 5
"""Most frequent ids of a column that are told."""

Progress = Callable[[int, int], None]
"""Called with rows seen so far and in all."""


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Figures of a column over all rows."""

    name: str
    type: str
    """Arrow type."""
    kind: Kind
    nulls: int
    coverage: float
    """Share of rows that are not null."""
    count: int
    """Ids, those in lists one by one."""
    distinct: int | None
    """Distinct ids; None for a column without ids."""
    is_exact: bool
    """Whether `distinct` and `top` are counted rather than estimated."""
    top: tuple[tuple[str, float], ...]
    """Most frequent ids and their shares of all."""
    numbers: NumberFigures | None
    lengths: LengthFigures | None
    means: dict[SplitName, float]
    """Mean of the numbers in each split: of a label, its rate."""
    drift: Drift
    cardinality: Cardinality
    sample: KeySample
    """Of the training ids."""


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    """Figures of a data set."""

    path: str
    files: int
    nbytes: int
    row_groups: int
    rows: int
    split_rows: dict[SplitName, int]
    parting: Parting
    columns: dict[str, ColumnProfile]


class _Sketches:
    """Sketches of all columns in both splits."""

    def __init__(self, place: Place, parting: Parting) -> None:
        self.kinds = {field.name: kind_of(field.type) for field in place.schema}
        self.rows: dict[SplitName, int] = {"train": 0, "eval": 0}
        self.columns = {name: {split: ColumnSketch(self.kinds[name]) for split in self.rows} for name in self.kinds}
        self.tally = Tally()
        self._parting = parting

    def add(self, rows: Rows) -> None:
        numbers = np.arange(rows.first, rows.first + rows.batch.num_rows, dtype=np.uint64)
        picked = mix64(numbers) < np.uint64(min(2**64 - 1, 2**64 * SAMPLED_ROWS // self._parting.total))
        for split, which in self._parting.parts(rows):
            chosen = rows.batch if which is None else rows.batch.take(which)
            sampled = picked if which is None else picked[which]
            self.rows[split] += chosen.num_rows
            for name, sketches in self.columns.items():
                sketches[split].add(chosen.column(name), sampled, self.tally)


def profile_dataset(path: str, split: Split | None, progress: Progress) -> DatasetProfile:
    """Read all rows once, in memory that grows with the number of columns alone (about a megabyte each).

    Without a `split`, one is looked for in columns and file names. Raises DataError for files that cannot be read.
    """
    place = open_place(path)
    parting = parting_of(place, split)
    sketches = _Sketches(place, parting)
    total = sum(place.rows)
    for rows in read_rows(place, list(sketches.kinds)):
        sketches.add(rows)
        progress(rows.first + rows.batch.num_rows, total)
    return DatasetProfile(
        path=path,
        files=len(place.files),
        nbytes=sum(file.nbytes for file in place.files),
        row_groups=place.row_groups,
        rows=total,
        split_rows=sketches.rows,
        parting=parting,
        columns={
            name: _column(name, type_name(place.schema.field(name).type), both, sketches.tally)
            for name, both in sketches.columns.items()
        },
    )


def _column(name: str, arrow_type: str, parts: dict[SplitName, ColumnSketch], tally: Tally) -> ColumnProfile:
    train, evaluation = parts["train"], parts["eval"]
    both = train.joined(evaluation, tally)
    has_ids = both.kind in ("integer", "list", "text")
    has_numbers = both.kind in ("integer", "number")
    return ColumnProfile(
        name=name,
        type=arrow_type,
        kind=both.kind,
        nulls=both.nulls,
        coverage=1.0 - both.nulls / both.rows if both.rows else 0.0,
        count=both.ids.count,
        distinct=both.ids.distinct if has_ids else None,
        is_exact=both.ids.is_exact,
        top=tuple((_shown(id_, arrow_type, both), count / both.ids.count) for id_, count in both.ids.top(TOP).items()),
        numbers=both.numbers.figures() if has_numbers else None,
        lengths=both.lengths.figures(),
        means={split: part.numbers.total / part.numbers.count for split, part in parts.items() if part.numbers.count},
        drift=drift_between(train, evaluation),
        cardinality=both.ids.cardinality,
        sample=train.ids.sample,
    )


def _shown(id_: int, arrow_type: str, sketch: ColumnSketch) -> str:
    """Return an id as people know it: the text it stands for, or a number with the sign of its column."""
    if sketch.kind == "text":
        return sketch.texts.get(id_, f"{id_:#x}")
    signed = "uint" not in arrow_type and id_ >= 2**63
    return str(id_ - 2**64 if signed else id_)
