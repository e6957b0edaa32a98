"""Counts of an interval's look-ups, from the answers that brought its rows."""

from typing import Any

from persia_cli.observe.figures import latest
from persia_cli.wire.messages import Rows
from persia_cli.wire.parts import TableTotals


class LookUps:
    """Ids of an interval's batches, those without a row, and the tables as its last look-up left them."""

    def __init__(self) -> None:
        self._ids = self._unknown = 0
        self._totals: tuple[TableTotals, ...] = ()

    def add(self, rows: Rows) -> None:
        """Take the answer of one batch."""
        self._ids += rows.ids
        self._unknown += rows.unknown
        # Answers of several embedding workers do not come in order.
        self._totals = latest((self._totals, rows.totals))

    def figures(self) -> dict[str, Any]:
        """Return them as a report has them."""
        return {"ids": self._ids, "unknown": self._unknown, "tables": self._totals}
