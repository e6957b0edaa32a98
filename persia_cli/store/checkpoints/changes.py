"""What changed in the rows of a shard since its last checkpoint, without a record of each change.

A look-up of training sets the step of last use of every row that it finds or makes, and an update changes only rows
that a look-up of its own step has found, or sets that step itself. A checkpoint of step t is saved while nothing is in
flight, so every look-up after it is of step t or later. Hence the rows that changed since then are among those last
used in step t or later. Only rows that are gone need a record, which the store keeps as it evicts them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.store.row_store import Keys, Tables
from persia_cli.store.shard import Shard


@dataclass(frozen=True)
class StoreChanges:
    """The changes of one row store since the checkpoint of a step."""

    since: int
    """Rows that were last used in this step or later may have changed, others have not."""
    keys: Keys
    """Keys whose rows are gone, ordered by key, then table number: uint64[n]."""
    tables: Tables
    """Their table numbers, uint16[n]."""


class ChangeLog:
    """The last checkpoint of a shard, and what has changed since."""

    def __init__(self, shard: Shard, since: NDArray[np.uint64] | None = None) -> None:
        """Go on with the checkpoint that `since`, uint64[1], tells of: its step + 1, or 0 if there is none.

        With the keys that are gone in a memory file beside it, the log outlives the process.
        """
        self._shard = shard
        self._since = np.zeros(1, np.uint64) if since is None else since

    def loaded(self, step: int) -> None:
        """Begin with the checkpoint of a step, which has just been loaded, if the shard has all of its rows."""
        complete = not any(counters.left_out for counters in self._shard.counters().values())
        self._since[0] = step + 1 if complete else 0

    def cut(self, step: int, parent: int | None) -> list[StoreChanges | None]:
        """Begin anew at a checkpoint of `step`, and return each store's changes since the checkpoint `parent`.

        Call it while no update is in flight. None stands for changes that are not known: there is no parent, it is not
        the last checkpoint that this shard saved or loaded, or more rows were evicted than the store remembers.
        """
        known = parent is not None and parent + 1 == self._since[0]
        # Who dies in between has forgotten keys of one checkpoint and not begun the next.
        self._since[0] = 0
        evicted = [store.take_evicted() for store in self._shard.stores]
        self._since[0] = step + 1
        return [
            StoreChanges(parent, *gone) if known and parent is not None and gone is not None else None
            for gone in evicted
        ]
