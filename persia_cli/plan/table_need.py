"""How much memory a data set's tables would take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from persia_cli.plan.capacity import Claim, divide
from persia_cli.store.layout import RowOptimizer, bytes_per_row

Kind = Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"]


@dataclass(frozen=True, slots=True)
class TableNeed:
    """What a table takes when every id of the data has a row."""

    rows: int
    nbytes: int
    fitting: int | None
    """Rows that it gets of a given memory, all tables having equal rights; None if no memory is given."""


def table_needs(ids: Mapping[str, int], dim: int, optimizer: Kind, memory: int | None) -> dict[str, TableNeed]:
    """Return what each table takes, by name, from its number of distinct ids: float32 rows of `dim` columns."""
    row_bytes = bytes_per_row(dim, "float32", RowOptimizer(optimizer, lr=1.0))
    fitting: list[int | None] = [None] * len(ids)
    if memory is not None:
        fitting = [*divide(memory, [Claim(row_bytes, most=rows) for rows in ids.values()])]
    return {
        name: TableNeed(rows, math.ceil(rows * row_bytes), fits)
        for (name, rows), fits in zip(ids.items(), fitting, strict=True)
    }
