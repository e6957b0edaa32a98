"""Iceberg tables: pyiceberg reads catalogs and manifests.

A catalog is configured, with its credentials, where pyiceberg looks: ~/.pyiceberg.yaml or PYICEBERG_CATALOG__NAME__….
"""

# Invariants of the files of a table:
#
# - They are its rows: a table with deleted rows is refused, since the files still have them.
# - A column of a file has the meaning that the table's column of this name has now. Files keep the names that columns
#   had when they were written, so a table that gave a name to two columns is refused; a column that was renamed just
#   once is missing in the older files.

import re
from collections.abc import Iterator
from typing import Any

from persia_cli.data.tables.table import BEGIN_AGAIN, OnTrap, TableFile, name_and_number
from persia_cli.errors import DataError, count, did_you_mean

_NAME = re.compile(r"iceberg:(?P<catalog>[^/@]+)/(?P<table>[^/@]+\.[^/@.]+)")


class Iceberg:
    """An Iceberg table as its catalog has it now; its commits are snapshots, each with a parent."""

    def __init__(self, path: str) -> None:
        self._where = f"dataset.path={path}"
        self._table = _loaded(path)
        self._metadata = self._table.metadata
        self.root: str = self._metadata.location
        for name, number in ((field.name, field.field_id) for field in self._table.schema().fields):
            columns = {
                field.field_id for schema in self._metadata.schemas for field in schema.fields if field.name == name
            }
            if columns != {number}:
                raise DataError(
                    f"{self._where}: {count(len(columns), 'column')} had the name {name}, so files may have values of "
                    "another one there; give the column a new name, and rewrite the table's files (rewrite_data_files)"
                )

    def present(self) -> int | None:
        current = self._metadata.current_snapshot()
        return None if current is None else current.snapshot_id

    def files(self, commit: int, on_trap: OnTrap) -> list[TableFile]:
        if (snapshot := self._snapshot(commit, on_trap)) is None:
            return []
        if self._deletes_rows(snapshot):
            on_trap(
                "deletes",
                f"{self._where} has deleted rows at snapshot {commit}, which are still in its files; rewrite "
                "the table's files without them (rewrite_data_files)",
            )
        # Tables of format 1 number no snapshots; their files are in the order of their names.
        entries = sorted(
            self._entries(snapshot), key=lambda entry: (entry.sequence_number or 0, entry.data_file.file_path)
        )
        return [self._file(entry, snapshot) for entry in entries]

    def later(self, commit: int, on_trap: OnTrap) -> list[int]:
        snapshot = self._metadata.current_snapshot()
        if snapshot is None:
            raise DataError(f"{self._where} is empty, and had rows before; {BEGIN_AGAIN}")
        chain: list[int] = []
        while snapshot is not None and snapshot.snapshot_id != commit:
            chain.append(snapshot.snapshot_id)
            if snapshot.parent_snapshot_id == commit:
                break
            snapshot = self._metadata.snapshot_by_id(snapshot.parent_snapshot_id or 0)
        if snapshot is None and self._snapshot(commit, on_trap) is not None:
            raise DataError(
                f"{self._where} was set back to a snapshot before {commit}, up to which it is trained; {BEGIN_AGAIN}"
            )
        return chain[::-1]

    def added(self, commit: int, on_trap: OnTrap) -> list[TableFile]:
        from pyiceberg.manifest import ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        if (snapshot := self._snapshot(commit, on_trap)) is None:
            return []
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return []  # the same rows in other files
        if operation != Operation.APPEND:
            name = "a change" if operation is None else f"a snapshot of kind {operation.value}"
            text = (
                f"{self._where}: {name} ({commit}) changed rows that may be trained already, and a training can "
                f"only add; {BEGIN_AGAIN}"
            )
            on_trap("deletes" if self._deletes_rows(snapshot) else "not_append", text)
            return []
        # A manifest may also carry on files that earlier snapshots added.
        entries = [each for each in self._entries(snapshot, commit) if each.snapshot_id == commit]
        added = [each for each in entries if each.status == ManifestEntryStatus.ADDED]
        return sorted(self._file(each, snapshot) for each in added)

    def _snapshot(self, commit: int, on_trap: OnTrap) -> Any:
        """Return the snapshot of a commit; None if it has expired, and that is passed over."""
        if (snapshot := self._metadata.snapshot_by_id(commit)) is None:
            text = f"there is no snapshot {commit} any more, so files may be missing; {BEGIN_AGAIN}"
            on_trap("lost_cursor", f"{self._where}: {text}")
        return snapshot

    def _deletes_rows(self, snapshot: Any) -> bool:
        """Return True if a snapshot has files of deleted rows, which the data files still have."""
        from pyiceberg.manifest import ManifestContent

        deleting = [each for each in snapshot.manifests(self._table.io) if each.content == ManifestContent.DELETES]
        return any(each.has_added_files() or each.has_existing_files() for each in deleting)

    def _entries(self, snapshot: Any, added_by: int | None = None) -> Iterator[Any]:
        """Yield the entries of data files of a snapshot, or of the manifests that another one added."""
        from pyiceberg.manifest import ManifestContent

        for manifest in snapshot.manifests(self._table.io):
            if manifest.content == ManifestContent.DATA and added_by in (None, manifest.added_snapshot_id):
                yield from manifest.fetch_manifest_entry(self._table.io)

    def _file(self, entry: Any, snapshot: Any) -> TableFile:
        """Return the file of an entry, which came with its own snapshot, or with `snapshot` if that expired."""
        from pyiceberg.manifest import FileFormat

        file = entry.data_file
        if file.file_format != FileFormat.PARQUET:
            raise DataError(f"{self._where}: {file.file_path} is not Parquet; rewrite the table's files as Parquet")
        of = self._metadata.snapshot_by_id(entry.snapshot_id) or snapshot
        return TableFile(file.file_path, file.file_size_in_bytes, of.timestamp_ms / 1e3)


def _loaded(path: str) -> Any:
    """Return pyiceberg's table; raises DataError for a catalog that is not configured."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    found = _NAME.fullmatch(name_and_number(path)[0])
    if found is None:
        raise DataError(
            f"dataset.path={path} is not the name of an Iceberg table; write iceberg:CATALOG/NAMESPACE.TABLE, with "
            "@SNAPSHOT for an old one"
        )
    name, configuration = found["catalog"], Config()
    settings: Any = configuration.get_catalog_config(name)
    if settings is None:
        known = did_you_mean(name, configuration.get_known_catalogs())
        raise DataError(
            f"dataset.path={path}: pyiceberg has no catalog {name} in ~/.pyiceberg.yaml or in variables "
            f"PYICEBERG_CATALOG__{name.upper()}__…; {known}"
        )
    with load_catalog(name, **settings) as catalog:
        return catalog.load_table(found["table"])
