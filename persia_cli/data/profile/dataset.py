"""The profile of a data set: statistics from one pass over its rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.config.schema.split import Split
from persia_cli.control.position import SplitName
from persia_cli.data.converted import Progress as Converting
from persia_cli.data.profile.cardinality import Cardinality
from persia_cli.data.profile.column import ColumnSketch, Kind, kind_of, type_name
from persia_cli.data.profile.drift import Drift, drift_between
from persia_cli.data.profile.numbers import LengthFigures, NumberFigures
from persia_cli.data.profile.places import RowSpan, SourceFiles, open_place, read_rows
from persia_cli.data.profile.split_rule import SplitRule, split_rule_of
from persia_cli.data.profile.tally import KeySample, Tally
from persia_cli.kernels.splitmix import mix64

SAMPLED_ROWS = 1 << 15
"""Rows of a split that numbers are sampled from, approximately; all rows if it has fewer."""
TOP = 5
"""Most frequent ids that are reported for a column."""

Progress = Callable[[int, int], None]
"""Called with the rows read so far and in total."""


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Statistics of a column over all rows."""

    name: str
    type: str
    """Arrow type."""
    kind: Kind
    nulls: int
    coverage: float
    """Part of the rows that are not null, 0 to 1."""
    count: int
    """Number of ids; each id of a list counts."""
    distinct: int | None
    """Distinct ids; None for a column without ids."""
    is_exact: bool
    """True if `distinct` and `top` are counted, False if they are estimated."""
    top: tuple[tuple[str, float], ...]
    """Most frequent ids, each with its part of all ids."""
    numbers: NumberFigures | None
    lengths: LengthFigures | None
    means: dict[SplitName, float]
    """Mean of the numbers in each split; for a label, the part of positives."""
    drift: Drift
    cardinality: Cardinality
    sample: KeySample
    """Sample of the training ids."""


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    """Statistics of a data set."""

    path: str
    files: int
    nbytes: int
    row_groups: int
    rows: int
    split_rows: dict[SplitName, int]
    split_rule: SplitRule
    columns: dict[str, ColumnProfile]
    unread: tuple[str, ...]
    """A sentence for each file with rows that could not be read."""


class _Sketches:
    """Sketches of all columns in both splits."""

    def __init__(self, place: SourceFiles, split_rule: SplitRule) -> None:
        self.kinds = {field.name: kind_of(field.type) for field in place.schema}
        self.rows: dict[SplitName, int] = {"train": 0, "eval": 0}
        self.columns = {name: {split: ColumnSketch(self.kinds[name]) for split in self.rows} for name in self.kinds}
        self.tally = Tally()
        self._split_rule = split_rule

    def add(self, rows: RowSpan) -> None:
        numbers = np.arange(rows.first, rows.first + rows.batch.num_rows, dtype=np.uint64)
        picked = mix64(numbers) < np.uint64(min(2**64 - 1, 2**64 * SAMPLED_ROWS // self._split_rule.total))
        for split, which in self._split_rule.parts(rows):
            chosen = rows.batch if which is None else rows.batch.take(which)
            sampled = picked if which is None else picked[which]
            self.rows[split] += chosen.num_rows
            for name, sketches in self.columns.items():
                sketches[split].add(chosen.column(name), sampled, self.tally)


def profile_dataset(
    path: str, split: Split | None, progress: Progress, form: CsvFormat, converting: Converting
) -> DatasetProfile:
    """Read all rows once, in memory that depends only on the number of columns (about a megabyte each).

    Without a `split`, one is searched for in columns and file names. Raises DataError for files that cannot be read.
    """
    place = open_place(path, form, converting)
    split_rule = split_rule_of(place, split)
    sketches = _Sketches(place, split_rule)
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
        split_rule=split_rule,
        columns={
            name: _column(name, type_name(place.schema.field(name).type), both, sketches.tally)
            for name, both in sketches.columns.items()
        },
        unread=place.unread,
    )


def _column(name: str, arrow_type: str, parts: dict[SplitName, ColumnSketch], tally: Tally) -> ColumnProfile:
    train, evaluation = parts["train"], parts["eval"]
    if not (train.may_be_ids and evaluation.may_be_ids):  # one of the splits has a number with a fraction
        train.forget_ids()
        evaluation.forget_ids()
    both = train.joined(evaluation, tally)
    has_ids = both.may_be_ids
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
    """Return an id as users know it: the text that it stands for, or a number with the sign of its column's type."""
    if sketch.texts:
        return sketch.texts.get(id_, f"{id_:#x}")
    signed = "uint" not in arrow_type and id_ >= 2**63
    return str(id_ - 2**64 if signed else id_)
