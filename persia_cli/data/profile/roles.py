"""What the columns of a data set look like: label, dense, sparse, or nothing to train on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from persia_cli.config.schema.dataset import ColumnSplit, ParquetDataset
from persia_cli.data.profile.dataset import ColumnProfile, DatasetProfile

Role = Literal["label", "dense", "sparse", "weight", "split", "unused"]

LABELS = ("label", "labels", "target", "y", "click", "clicked", "clk", "is_click", "buy", "bought", "purchase",
          "purchased", "conversion", "converted", "like", "liked")  # fmt: skip
WEIGHTS = ("weight", "weights", "sample_weight")
TIMES = ("timestamp", "time", "date", "datetime", "ts", "time_stamp")
ROW_NUMBER_SHARE = 0.95
"""A column with this many distinct ids per row tells rows apart and nothing else."""
_FEW_ROWS = 1000
SHARED = 0.5
"""Share of a list's ids that another column has too, from which on they are taken for ids of one kind."""
_FEW_IDS = 50


@dataclass(frozen=True, slots=True)
class Guess:
    """What a column looks like, and why."""

    role: Role
    reason: str
    table: str | None = None
    """Column whose ids the ids of this one are, too."""


def roles_of(profile: DatasetProfile, known: ParquetDataset | None) -> dict[str, Guess]:
    """Return the role of each column: as the data set's own configuration says, or else by name, type and values."""
    if known is not None:
        return {name: _known(name, known) for name in profile.columns}
    labels = _labels(profile)
    guesses = {}
    for column in profile.columns.values():
        guesses[column.name] = labels.get(column.name) or _guess(column, profile)
    return guesses | _shared(profile, guesses)


def _known(name: str, dataset: ParquetDataset) -> Guess:
    if name in dataset.labels:
        return Guess("label", "")
    if name in dataset.dense:
        return Guess("dense", "")
    for feature in dataset.sparse:
        if name == (feature.column or feature.name):
            return Guess("sparse", "", feature.table or feature.name)
    if name == dataset.weight:
        return Guess("weight", "")
    if isinstance(dataset.split, ColumnSplit) and name == dataset.split.column:
        return Guess("split", "")
    return Guess("unused", "")


def _labels(profile: DatasetProfile) -> dict[str, Guess]:
    """Return columns of 0 and 1 that are called like labels, or else the first column of 0 and 1."""
    binary = [column.name for column in profile.columns.values() if column.numbers and column.numbers.is_binary]
    named = [name for name in binary if name.lower() in LABELS]
    if named:
        return {name: Guess("label", "0 and 1, and so called") for name in named}
    return {name: Guess("label", "the first column of 0 and 1") for name in binary[:1]}


def _guess(column: ColumnProfile, profile: DatasetProfile) -> Guess:
    split, name, numbers = profile.parting.split, column.name.lower(), column.numbers
    if isinstance(split, ColumnSplit) and column.name == split.column:
        return Guess("split", "says train or eval")
    if column.kind == "other":
        return Guess("unused", f"{column.type} is neither numbers nor ids")
    if column.kind == "text":
        return Guess("unused", "text: hash it when you prepare the data, as recipe my_data does")
    if column.count == 0 and (numbers is None or numbers.mean is None):
        return Guess("unused", "there is no value in it")
    if name in TIMES or name.endswith(("_at", "_time", "_timestamp", "_date")):
        return Guess("unused", "a time: split by it, or prepare hours and days")
    if column.kind == "number":
        return _number(column)
    if column.distinct == 1 and column.kind == "integer" and not column.nulls:
        return Guess("unused", "always the same")
    if column.kind == "integer" and _tells_rows_apart(column, profile.rows):
        return Guess("unused", "nearly every row has an id of its own")
    return Guess("sparse", "integers" if column.kind == "integer" else "lists of integers")


def _number(column: ColumnProfile) -> Guess:
    numbers = column.numbers
    if numbers is None or numbers.mean is None or numbers.least == numbers.greatest:
        return Guess("unused", "always the same")
    if column.name.lower() in WEIGHTS and numbers.least is not None and numbers.least >= 0:
        return Guess("weight", "so called")
    return Guess("dense", "numbers with a fraction")


def _tells_rows_apart(column: ColumnProfile, rows: int) -> bool:
    return rows >= _FEW_ROWS and (column.distinct or 0) > ROW_NUMBER_SHARE * rows


def _shared(profile: DatasetProfile, guesses: dict[str, Guess]) -> dict[str, Guess]:
    """Return the lists whose ids are mostly ids of a column of single ids, with that column's table."""
    sparse = [profile.columns[name] for name, guess in guesses.items() if guess.role == "sparse"]
    single = [column for column in sparse if column.kind == "integer"]
    found = {}
    for column in sparse:
        if column.kind != "list" or (column.distinct or 0) < _FEW_IDS:
            continue
        shares = {other.name: overlap(column, other) for other in single}
        best = max(shares, key=lambda name: shares[name], default=None)
        if best is not None and shares[best] >= SHARED:
            found[column.name] = Guess("sparse", f"lists of integers, {shares[best]:.0%} of them ids of {best}", best)
    return found


def overlap(column: ColumnProfile, other: ColumnProfile) -> float:
    """Return the share of a column's distinct training ids that another column has too."""
    level = max(column.sample.level, other.sample.level)
    keys, others = column.sample.at(level)[0], other.sample.at(level)[0]
    return float(np.isin(keys, others).mean()) if keys.size else 0.0
