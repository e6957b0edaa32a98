"""The statistics of a data set and of its columns."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from persia_cli.config.schema.features import TimePart
from persia_cli.config.schema.split import Split
from persia_cli.control.position import SplitName
from persia_cli.data.inspect.files import SourceFiles

Kind = Literal["number", "integer", "list", "vector", "text", "time", "other"]
"""The kind of a column's values: numbers with a fraction, integers, lists of integers or text, lists of numbers with a
fraction, text, dates or timestamps, or others."""


@dataclass(frozen=True, slots=True)
class NumberStatistics:
    """Statistics of the finite numbers of a column; None if there are none."""

    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    """Standard deviation, from a sample of the rows; None for integers."""
    not_finite: int = 0
    is_binary: bool = False
    """True if 0 and 1 both occur, and no other number."""
    is_whole: bool = False
    """True if no number has a fraction, or is so large that it may have been rounded."""


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Statistics of the lengths of lists."""

    least: int
    greatest: int
    mean: float
    counts: tuple[int, ...]
    """Number of lists of length 0, 1, 2 to 3, 4 to 7, and so on, doubling."""

    def covering(self, fraction: float) -> int:
        """Return a length that this fraction of the lists does not exceed: a power of two less 1, or the greatest."""
        seen = np.cumsum(self.counts)
        return min(self.greatest, (1 << int(np.searchsorted(seen, fraction * seen[-1]))) - 1)


@dataclass(frozen=True, slots=True)
class TimeHint:
    """The properties of a column of times, from a sample of its values."""

    format: str | None = None
    """The format of texts or numbers; None for dates, timestamps and ISO 8601."""
    others: tuple[str, ...] = ()
    """Other formats that all values fit too."""
    parts: tuple[TimePart, ...] = ()
    """Parts of the times that recur."""
    divides: bool = False
    """True if the latest rows can evaluate and test: their times differ from the others'."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints from the values of a column."""

    time: TimeHint | None = None
    """Present if all values are times."""
    numbers_rows: bool = False
    """True if the values are integers without gaps, each once."""
    separator: str | None = None
    """The separator of the ids in a text."""
    are_written: bool = False
    """True if all texts are numbers, and some have a comma, a % or a currency."""
    are_numbers: bool = False
    """True if almost all texts are numbers; digits alone may be ids."""
    words: tuple[str, ...] = ()
    """The few texts that are no numbers there."""
    filler: tuple[str, float] | None = None
    """A value that may stand for none, and its part of all values."""


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Statistics of a column over all rows of both splits."""

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
    top: tuple[tuple[str, float], ...]
    """Most frequent ids, each with its part of all ids."""
    numbers: NumberStatistics | None
    lengths: LengthStatistics | None
    means: dict[SplitName, float]
    """Mean of the numbers in each split; for a label, the part of positives."""
    unseen_ids: float | None
    """Fraction of the distinct evaluation ids that are not in the training rows; None without any."""
    unseen_lookups: float | None
    """Fraction of the evaluation look-ups, each occurrence of an id, whose id is not in the training rows."""
    hints: Hints

    @property
    def is_complete(self) -> bool:
        """True if every row has a finite number, or lists of such."""
        return self.nulls == 0 and (self.numbers is None or self.numbers.not_finite == 0)


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    """Statistics of a data set."""

    source: SourceFiles
    split: Split | None
    """The rule that splits rows; None for the last fifth."""
    split_rows: dict[SplitName, int]
    columns: dict[str, ColumnProfile]

    @property
    def rows(self) -> int:
        """Number of rows, also those of neither split."""
        return sum(self.source.rows)
