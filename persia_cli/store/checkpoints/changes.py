"""The changes of a shard since its last checkpoint, without a record of each change.

A look-up of training sets the step of last use of every row that it finds or creates. An update changes only rows that
a look-up of the same step has found, or sets that step itself. A checkpoint of step t is saved while nothing is in
flight, so every later look-up is of step t or later. Hence the rows that changed since then are among those last used
in step t or later. Only deleted rows need a record, which the store writes when it evicts them.
"""

from dataclasses import dataclass

from persia_cli.store.row_store import Keys, Tables
from persia_cli.store.shard import Shard


@dataclass(frozen=True)
class StoreChanges:
    """The changes of one row store since the checkpoint of a step."""

    since: int
    """Rows that were last used in this step or later may have changed, others have not."""
    keys: Keys
    """Keys whose rows were deleted, ordered by key, then table number: uint64[n]."""
    tables: Tables
    """Their table numbers, uint16[n]."""


def note_loaded(shard: Shard, step: int, had_cold: bool) -> None:
    """Begin the changes at the checkpoint of a step, which was just loaded, if the rows in memory are the same.

    They are not if rows were left out, or if rows are cold or were (`had_cold`): others may be in memory now.
    """
    left_out = any(counters.left_out for counters in shard.counters().values())
    moved = had_cold or any(store.held > store.used for store in shard.stores)
    shard.changes_since[0] = 0 if left_out or moved else step + 1


def take_changes(shard: Shard, step: int, parent: int | None) -> list[StoreChanges | None]:
    """Begin new changes at a checkpoint of `step`, and return each store's changes since the checkpoint `parent`.

    Call it while no update is in flight. None stands for unknown changes: there is no parent, it is not the last
    checkpoint that this shard saved or loaded, or more rows were evicted than the store remembers.
    """
    is_known = parent is not None and parent + 1 == shard.changes_since[0]
    # A process that dies in between has lost the keys of one checkpoint and not begun the next.
    shard.changes_since[0] = 0
    evicted = [store.take_evicted() for store in shard.stores]
    shard.changes_since[0] = step + 1
    return [
        StoreChanges(parent, *gone) if is_known and parent is not None and gone is not None else None
        for gone in evicted
    ]
