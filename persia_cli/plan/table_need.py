"""The memory that the tables of a data set need."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from persia_cli.plan.capacity import CapacityRequest, divide
from persia_cli.store.layout import RowOptimizer, bytes_per_row

Kind = Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The need of a table if every id of the data has a row."""

    rows: int
    nbytes: int
    fitting: int | None
    """Number of rows that it gets of a given memory without shares; None if no memory is given."""


def table_needs(ids: Mapping[str, int], dim: int, optimizer: Kind, memory: int | None) -> dict[str, TableNeed]:
    """Return the need of each table by name, from its number of distinct ids, for float32 rows of `dim` columns."""
    row_bytes = bytes_per_row(dim, "float32", RowOptimizer(optimizer, lr=1.0))
    fitting: list[int | None] = [None] * len(ids)
    if memory is not None:
        fitting = [*divide(memory, [CapacityRequest(row_bytes, most=rows) for rows in ids.values()])]
    return {
        name: TableNeed(rows, math.ceil(rows * row_bytes), fits)
        for (name, rows), fits in zip(ids.items(), fitting, strict=True)
    }
