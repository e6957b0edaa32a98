"""The division of the memory, or of the rows, of all tables among them, and the memory that they need."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from persia_cli.store.layout import OptimizerKind, RowOptimizer, bytes_per_row


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """A table's request for capacity.

    `row_cost` is the cost of a row in the budget, `most` the maximum number of rows that the table can use (None: no
    limit), `share` the fraction of the budget that is reserved for it.
    """

    row_cost: float
    most: int | None = None
    share: float | None = None


def divide(budget: float, requests: Sequence[CapacityRequest]) -> list[int]:
    """Return the rows of each table; together they cost at most `budget`.

    A table with a share gets the rows that fit its share; its unused part stays free. All others get equal numbers
    of rows of the rest of the budget; the unused part of one of them goes to the others.
    """
    rows = [0] * len(requests)
    equal = [number for number, request in enumerate(requests) if request.share is None]
    for number, request in enumerate(requests):
        if request.share is not None:
            rows[number] = int(_at_most(request, request.share * budget // request.row_cost))
    left = budget * (1.0 - math.fsum(request.share or 0.0 for request in requests))
    while equal:
        each = max(0.0, left / sum(requests[number].row_cost for number in equal))
        content = {number for number in equal if _at_most(requests[number], each) < each}
        for number in content or equal:
            rows[number] = int(_at_most(requests[number], each))
            left -= rows[number] * requests[number].row_cost
        equal = [number for number in equal if content and number not in content]
    return rows


def _at_most(request: CapacityRequest, rows: float) -> float:
    return rows if request.most is None else min(rows, request.most)


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The need of a table if every id of the data has a row."""

    rows: int
    nbytes: int
    fitting: int | None
    """Number of rows that it gets of a given memory without shares; None if no memory is given."""


def table_needs(ids: Mapping[str, int], dim: int, optimizer: OptimizerKind, memory: int | None) -> dict[str, TableNeed]:
    """Return the need of each table by name, from its number of distinct ids, for float32 rows of `dim` columns."""
    row_bytes = bytes_per_row(dim, "float32", RowOptimizer(optimizer, lr=1.0), counts_uses=True)
    fitting: list[int | None] = [None] * len(ids)
    if memory is not None:
        fitting = [*divide(memory, [CapacityRequest(row_bytes, most=rows) for rows in ids.values()])]
    return {
        name: TableNeed(rows, math.ceil(rows * row_bytes), fits)
        for (name, rows), fits in zip(ids.items(), fitting, strict=True)
    }
