"""A save of a shard by the thread that owns it."""

from collections.abc import Callable

from persia_cli.storage.places import Place
from persia_cli.store.checkpoints.row_files import Changes, steps_of, write_portions
from persia_cli.store.shard import Shard
from persia_cli.wire.reports import SavedFile


def save_shard(
    shard: Shard,
    directory: Place,
    on_rows: Callable[[int], None] = lambda rows: None,
    changes: Changes = None,
) -> list[SavedFile]:
    """Write a shard, or its changes, as servers do."""
    cut = shard.begin_snapshot(since=steps_of(changes))
    try:
        return write_portions(shard, cut.portions, directory, on_rows, changes)
    finally:
        shard.end_snapshot()
