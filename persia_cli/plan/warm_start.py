"""The initial values of a new run: a part of the job, which every role gets."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TakenTable:
    """A table that begins with the rows of table `source` of the saved model."""

    name: str
    source: str
    rows: int
    states: bool
    """True if the rows have their optimizer states; otherwise those begin anew."""
    frozen: bool = False
    """True if the rows stay unchanged, without an optimizer."""


@dataclass(frozen=True, slots=True)
class TakenVectors:
    """A table that begins with vectors of Parquet files."""

    name: str
    path: str
    files: tuple[str, ...]
    """Paths of the files on their file system."""
    id: str
    vector: str
    """Names of the columns."""
    rows: int
    made: Literal["integer", "text", "time"] | None
    """The source of the ids of the table's features."""


@dataclass(frozen=True, slots=True)
class DenseFit:
    """Dense weights by name: those taken, those that begin anew, those of the saved model that are not used."""

    taken: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]
    states: int = 0
    """Number of parameters with their optimizer states."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """All initial values of a run that are not drawn from its seed."""

    checkpoint: str | None
    step: int = 0
    """Step of the checkpoint."""
    tables: tuple[TakenTable, ...] = ()
    vectors: tuple[TakenVectors, ...] = ()
    new: tuple[str, ...] = ()
    """Tables that begin anew."""
    unused: tuple[str, ...] = ()
    """Tables of the checkpoint of which no table takes the rows."""
    dense: bool = False
    """True if dense weights are taken where names and shapes fit."""
    states: bool = False
    """True if the states of optimizers are taken where they fit."""
    fit: DenseFit | None = None
    """The dense weights; None before they are compared."""
    notes: tuple[str, ...] = ()
    """Warnings about possibly unintended settings."""

    @property
    def rows(self) -> int:
        """Number of rows that all servers together load."""
        return sum(table.rows for table in self.tables) + sum(file.rows for file in self.vectors)
