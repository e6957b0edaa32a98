"""A save of a shard by the thread that owns it."""

from collections import Counter
from collections.abc import Callable, Iterator

from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import (
    COLD,
    EMBEDDINGS,
    FORMAT_VERSION,
    Manifest,
    RunProgress,
    SavedTable,
)
from persia_cli.store.checkpoints.row_files import write_portions
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import ShardSnapshot, SnapshotRows
from persia_cli.version import __version__


def portions_of(cut: ShardSnapshot) -> Callable[[int], Iterator[SnapshotRows]]:
    """Return a function that yields the rows of a group; those of the groups before it must be taken."""

    def portions(group: int) -> Iterator[SnapshotRows]:
        last = False
        while not last:
            number, portion, last = cut.next_portion()
            assert number == group
            yield portion
            cut.give_back(group, portion)

    return portions


def save_shard(
    shard: Shard,
    directory: Location,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> list[SavedFile]:
    """Write a shard as servers do."""
    cut = shard.begin_snapshot()
    try:
        return write_portions(shard, portions_of(cut), directory, on_rows, cut.cold)
    finally:
        shard.end_snapshot()


def manifest_of(layout: EmbeddingLayout, step: int, files: list[SavedFile]) -> Manifest:
    """Return the manifest of files that servers have saved."""
    rows = [file.rows for file in files if file.rows is not None and file.folder in (COLD, EMBEDDINGS)]
    counts = sum((Counter(each.tables) for each in rows), Counter[str]())
    return Manifest(
        format_version=FORMAT_VERSION,
        persia_version=__version__,
        step=step,
        samples=step,
        seed=layout.seed,
        config={"mode": {"kind": "sync"}},
        tables=[
            SavedTable(table.name, group.dim, group.dtype, group.number, counts[table.name])
            for group in layout.groups
            for table in group.tables
        ],
        groups={str(group.number): sum(counts[table.name] for table in group.tables) for group in layout.groups},
        progress=RunProgress(0, 0, 0, 0, 0, 0, 0, 0, []),
        files=files,
    )
