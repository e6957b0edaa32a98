"""Paths of data whose content has versions: which one is present, and the files of a table's."""

from persia_cli.data.tables.delta import delta_at_present, delta_files
from persia_cli.data.tables.hub import hub_at_present
from persia_cli.data.tables.iceberg import iceberg_at_present, iceberg_files
from persia_cli.data.tables.places import Snapshot
from persia_cli.storage.addresses import DELTA, HUB, ICEBERG


def at_present(path: str) -> str:
    """Return a path that means the same from now on: a table or a repository gets its present snapshot."""
    for prefix, pin in ((ICEBERG, iceberg_at_present), (DELTA, delta_at_present), (HUB, hub_at_present)):
        if path.startswith(prefix):
            return pin(path)
    return path


def snapshot_of(path: str) -> Snapshot | None:
    """Return the snapshot of a table that a path names; None for other paths. Raises DataError."""
    if path.startswith(ICEBERG):
        return iceberg_files(path)
    return delta_files(path) if path.startswith(DELTA) else None
