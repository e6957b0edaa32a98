"""The division of the memory, or of the rows, of all tables among them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """A table's request for capacity.

    `row_cost` is the cost of a row in the budget, `most` the largest number of rows that the table can use (None: no
    limit), `share` the fraction of the budget that is reserved for it.
    """

    row_cost: float
    most: int | None = None
    share: float | None = None


def divide(budget: float, requests: Sequence[CapacityRequest]) -> list[int]:
    """Return the rows of each table; together they cost at most `budget`.

    A table with a share gets the rows that fit its share; what it cannot use stays free. All others get equal numbers
    of rows of the rest of the budget; what one of them cannot use goes to the others.
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
