"""The options of a preparation, and its report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from persia_cli.data.read.bad_rows import BadRow
from persia_cli.errors import DataError


class SplitChoice(NamedTuple):
    """A split that the user asks for in place of the recipe's."""

    order: Literal["random", "chronological"]
    fraction: float
    """Of the rows, for evaluation."""


class RecipeStamp(NamedTuple):
    """The name and state of a recipe: files made by another state of it are made again."""

    name: str
    digest: str
    """SHA-256 of its prepare.py."""


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """The options that a user may set."""

    max_bad_rows: int = 0
    """Rows that may fail to parse before the recipe gives up."""
    row_group_rows: int = 65536
    """Rows of a row group: the unit that loaders read and shuffle."""
    workers: int | None = None
    """Threads; None: one per core, up to 8."""
    min_count: int = 1
    """Ids with fewer occurrences than this all become `RARE_ID`."""
    split: SplitChoice | None = None
    """In place of the recipe's own split."""
    recipe: RecipeStamp | None = None
    """Set by `Recipe.prepare`."""


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """The result of a preparation."""

    rows: int
    files: tuple[Path, ...]
    nbytes: int
    """Bytes of these files."""
    bad_rows: int
    """Rows left out because they did not parse."""
    first_bad_rows: tuple[BadRow, ...]
    dataset: Path
    """The dataset.yaml, which a configuration can name."""
    kept: int = 0
    """Files kept from an earlier run."""


def parse_split(text: str) -> SplitChoice:
    """Read `random:0.1` or `chronological:0.1`; raises DataError."""
    order, _, fraction = text.partition(":")
    try:
        value = float(fraction)
    except ValueError:
        value = 0.0
    if order == "random" and 0 < value < 1:
        return SplitChoice("random", value)
    if order == "chronological" and 0 < value < 1:
        return SplitChoice("chronological", value)
    raise DataError(
        f"--split {text}: expected random:FRACTION or chronological:FRACTION with a fraction between 0 and 1"
    )
