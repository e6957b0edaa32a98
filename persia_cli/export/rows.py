"""The rows of a checkpoint as files that are mapped into memory, in one pass over each feature group."""

from collections.abc import Callable
from pathlib import Path

from persia_cli.checkpoint.content import SortedRows
from persia_cli.serving.description import Form, FrozenGroup
from persia_cli.serving.row_writer import TableRules, planned_group, writing_group
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.store.checkpoints.saved_rows import saved_rows
from persia_cli.store.layout import GroupSpec

OnRows = Callable[[int], None]
OnWork = Callable[[str, int, int], None]
"""Receives the name of the work, the finished part and the total."""


def require_rows(checkpoint: Location, on_work: OnWork) -> None:
    """Compare the content of every file of rows with its checksum; raises CheckpointError for a changed file."""
    files = saved_rows(checkpoint, read_manifest(checkpoint), with_dense=True)
    total, done = sum(part.nbytes for file in files for _, part in file.parts), 0

    def on_bytes(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        on_work("checking the checkpoint", done, total)

    for file in files:
        file.verify(on_bytes)


def write_rows(
    checkpoint: Location, manifest: Manifest, group: GroupSpec, form: Form, folder: Path, on_rows: OnRows
) -> FrozenGroup:
    """Write the rows of a feature group; returns their files. Calls `on_rows` with the number of rows of each portion.

    Raises UserError for rows that the dtype cannot represent, CheckpointError.
    """
    rows = {table.name: table.rows for table in manifest.tables}
    rules = [
        TableRules(
            name=table.name,
            rows=rows[table.name],
            salt=table.salt,
            init_bound=table.init_bound,
            admission=round(table.admission * 2**24),
            min_count=table.min_count,
            rounds=table.rounds,
            size=table.size,
        )
        for table in group.tables
    ]
    planned = planned_group(group.number, group.dim, form, group.dtype, rules)
    places = {table.name: place for place, table in enumerate(group.tables)}
    with writing_group(folder, planned) as writer:
        for block in SortedRows(checkpoint, manifest, group.number):
            for number, name in enumerate(block.names):
                own = block.tables == number
                if own.any():
                    writer.add(places[name], block.keys[own], block.vectors["embedding"][own])
            on_rows(block.keys.size)
    return planned
