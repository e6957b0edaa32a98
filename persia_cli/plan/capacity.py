"""How many rows each table gets of the memory, or of the rows, that all tables together may have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What a table asks for.

    `row_cost` is what a row takes of the budget, `most` the rows beyond which the table has no use for more (None: no
    such number), `share` the part of the budget that is its alone.
    """

    row_cost: float
    most: int | None = None
    share: float | None = None


def divide(budget: float, claims: Sequence[Claim]) -> list[int]:
    """Return the rows of each table; together they cost at most `budget`.

    A table with a share gets the rows that fit it, and what it has no use for stays free. All others get equally many
    rows of what is left; what one of them has no use for goes to the rest.
    """
    rows = [0] * len(claims)
    equal = [number for number, claim in enumerate(claims) if claim.share is None]
    for number, claim in enumerate(claims):
        if claim.share is not None:
            rows[number] = int(_at_most(claim, claim.share * budget // claim.row_cost))
    left = budget * (1.0 - math.fsum(claim.share or 0.0 for claim in claims))
    while equal:
        each = max(0.0, left / sum(claims[number].row_cost for number in equal))
        content = {number for number in equal if _at_most(claims[number], each) < each}
        for number in content or equal:
            rows[number] = int(_at_most(claims[number], each))
            left -= rows[number] * claims[number].row_cost
        equal = [number for number in equal if content and number not in content]
    return rows


def _at_most(claim: Claim, rows: float) -> float:
    return rows if claim.most is None else min(rows, claim.most)
