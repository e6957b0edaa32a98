"""The rows that look-ups of one feature group found, kept for the updates of the same keys.

Between a look-up and the update of its batch, other look-ups may evict some of its rows and give them to other keys.
Applying a gradient there would change the wrong row. So the index stores for each row the number of the look-up that
last gave it to another key, in one byte. It is written only at evictions and read only by `index.verify`, so it costs
look-ups no cache line. A byte repeats after 256 look-ups, so the difference of two numbers shows which one is later if
they are of look-ups less than 256 apart. The bound on staleness ensures that.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.table import index
from persia_cli.store.row_store import Keys, Tables

SOME_MISSING = 1
"""Result of `same_keys` if some keys had no row."""
MAX_LOOKUPS = 255
"""Number of a group's look-ups whose rows are remembered for their updates."""


@dataclass(frozen=True)
class RememberedRows:
    """The rows that a look-up found, for the update of the same keys."""

    keys: Keys
    tables: Tables
    rows: NDArray[np.int64]
    number: int
    """Number of the look-up."""
    evictions: int
    """Number of rows of the group that were evicted up to this look-up; -1 if some of its rows were on disk alone."""


class RememberedLookUps:
    """The rows of a group's last look-ups, by batch."""

    def __init__(self) -> None:
        self._by_batch: OrderedDict[Hashable, RememberedRows] = OrderedDict()

    def add(self, batch: Hashable, rows: RememberedRows) -> None:
        """Remember the rows of a batch; forget the oldest if there are too many."""
        self._by_batch[batch] = rows
        if len(self._by_batch) > MAX_LOOKUPS:
            self._by_batch.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._by_batch.clear()

    def evictions(self, batch: Hashable | None) -> int | None:
        """Return the evictions up to a batch's look-up; None if its rows are not remembered."""
        remembered = self._by_batch.get(batch)
        return None if remembered is None else remembered.evictions

    def take(
        self, batch: Hashable | None, keys: Keys, tables: Tables, look_ups: int
    ) -> tuple[RememberedRows | None, bool]:
        """Forget a batch's rows and return them, and True if some keys had none; None if they do not fit the keys.

        `look_ups` is the number of the group's look-ups so far.
        """
        remembered = self._by_batch.pop(batch, None)
        if remembered is None or look_ups - remembered.number > MAX_LOOKUPS:
            return None, False
        fit = index.same_keys(keys, tables, remembered.keys, remembered.tables, remembered.rows)
        return (remembered if fit else None), fit == SOME_MISSING
