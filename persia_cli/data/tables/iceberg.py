"""Iceberg tables: pyiceberg reads catalogs and manifests, and the files are read as those of a folder.

A catalog is configured, with its credentials, where pyiceberg looks: ~/.pyiceberg.yaml or PYICEBERG_CATALOG__NAME__….
"""

# Invariants of the files of a table:
#
# - They are its rows: a table with deleted rows is refused, since the files still have them.
# - A column of a file has the meaning that the table's column of this name has now: see `require_names`.

import re
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from persia_cli.data.tables.places import Snapshot, TableFile, asked, opened_places
from persia_cli.errors import DataError, count, did_you_mean

LIBRARY = "pyiceberg"
_NAME = re.compile(r"iceberg:(?P<catalog>[^/@]+)/(?P<table>[^/@]+\.[^/@.]+)(?:@(?P<snapshot>[0-9]+))?")
_ID = b"PARQUET:field_id"


def iceberg_at_present(path: str) -> str:
    """Return the path of a table at its present snapshot, unless it names one; raises DataError."""
    if _parsed(path)["snapshot"]:
        return path
    return asked(path, LIBRARY, lambda: f"{path}@{present(path, load_table(path)).snapshot_id}")


def iceberg_files(path: str) -> Snapshot:
    """Return a table at the snapshot that its path names; raises DataError, also for a table with deleted rows."""
    return asked(path, LIBRARY, lambda: _files(path))


def _files(path: str) -> Snapshot:
    table, wanted = load_table(path), _parsed(path)["snapshot"]
    snapshot = present(path, table) if wanted is None else table.metadata.snapshot_by_id(int(wanted))
    if snapshot is None:
        raise DataError(
            f"dataset.path={path}: the table has no such snapshot any more, or never had it; restore it, or begin a "
            "new run on the present one, by init_from"
        )
    if (text := deleted_rows(path, table, snapshot)) is not None:
        raise DataError(text)
    files = live_files(path, table, snapshot)
    require_names(path, table, files)
    return Snapshot(f"{path.partition('@')[0]}@{snapshot.snapshot_id}", table.metadata.location, tuple(files))


def _parsed(path: str) -> re.Match[str]:
    found = _NAME.fullmatch(path)
    if found is None:
        raise DataError(
            f"dataset.path={path} is not the name of an Iceberg table; write iceberg:CATALOG/NAMESPACE.TABLE, with "
            "@SNAPSHOT for an old one"
        )
    return found


def load_table(path: str) -> Any:
    """Return pyiceberg's table as its catalog has it now; raises DataError for a catalog that is not configured."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    name, configuration = _parsed(path)["catalog"], Config()
    settings: Any = configuration.get_catalog_config(name)
    if settings is None:
        known = did_you_mean(name, configuration.get_known_catalogs())
        raise DataError(
            f"dataset.path={path}: pyiceberg has no catalog {name} in ~/.pyiceberg.yaml or in variables "
            f"PYICEBERG_CATALOG__{name.upper()}__…; {known}"
        )
    with load_catalog(name, **settings) as catalog:
        return catalog.load_table(_parsed(path)["table"])


def present(path: str, table: Any) -> Any:
    """Return the present snapshot of a table; raises DataError if it has none."""
    snapshot = table.metadata.current_snapshot()
    if snapshot is None:
        raise DataError(f"dataset.path={path}: nothing was ever written to the table; write rows to it")
    return snapshot


def deleted_rows(path: str, table: Any, snapshot: Any) -> str | None:
    """Return a sentence on a snapshot with files of deleted rows, which the data files still have; else None."""
    from pyiceberg.manifest import ManifestContent

    deleting = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DELETES]
    if not any(each.has_added_files() or each.has_existing_files() for each in deleting):
        return None
    return (
        f"dataset.path={path} has deleted rows at snapshot {snapshot.snapshot_id}, which are still in its files; "
        "rewrite the table's files without them (rewrite_data_files)"
    )


def live_files(path: str, table: Any, snapshot: Any) -> list[TableFile]:
    """Return all data files of a snapshot, in the order in which they came."""
    from pyiceberg.manifest import ManifestContent

    data = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DATA]
    entries = [entry for manifest in data for entry in manifest.fetch_manifest_entry(table.io)]
    # Tables of format 1 number no snapshots; their files are in the order of their names.
    entries.sort(key=lambda entry: (entry.sequence_number or 0, entry.data_file.file_path))
    return [table_file(path, table, entry, snapshot) for entry in entries]


def added_files(path: str, table: Any, snapshot: Any) -> list[TableFile]:
    """Return the files that a snapshot added, sorted by their names."""
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

    own = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    data = [each for each in own if each.content == ManifestContent.DATA]
    entries = [entry for manifest in data for entry in manifest.fetch_manifest_entry(table.io)]
    added = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED]
    # A manifest may also carry on files that earlier snapshots added.
    files = [table_file(path, table, each, snapshot) for each in added if each.snapshot_id == snapshot.snapshot_id]
    return sorted(files)


def table_file(path: str, table: Any, entry: Any, snapshot: Any) -> TableFile:
    """Return the file of a manifest's entry, which came with its own snapshot, or with `snapshot` if that expired."""
    from pyiceberg.manifest import FileFormat

    file = entry.data_file
    if file.file_format != FileFormat.PARQUET:
        raise DataError(f"dataset.path={path}: {file.file_path} is not Parquet; rewrite the table's files as Parquet")
    of = table.metadata.snapshot_by_id(entry.snapshot_id) or snapshot
    return TableFile(file.file_path, file.file_size_in_bytes, of.timestamp_ms / 1e3)


def require_names(path: str, table: Any, files: Sequence[TableFile]) -> None:
    """Raise DataError if a column of a file has the name that another column of the table has now.

    Files keep the names that columns had when they were written. Only where a name was given twice does that matter,
    and the footers of the files are read; a column that was renamed just once is missing in the older files.
    """
    ids: dict[str, set[int]] = {}
    for schema in table.metadata.schemas:
        for field in schema.fields:
            ids.setdefault(field.name, set()).add(field.field_id)
    twice = {field.name: field.field_id for field in table.schema().fields if len(ids[field.name]) > 1}
    if not twice or not files:
        return
    filesystem, places, _ = opened_places([file.place for file in files], path)
    for place in places:
        for field in pq.read_schema(place, filesystem=filesystem):
            number = (field.metadata or {}).get(_ID)
            if field.name in twice and number is not None and int(number) != twice[field.name]:
                raise DataError(
                    f"dataset.path={path}: column {field.name} of {place} is another one than the table's column of "
                    f"this name, as {count(len(ids[field.name]), 'column')} had it; rewrite the table's files "
                    "(rewrite_data_files), or give the column a new name"
                )
