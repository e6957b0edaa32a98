"""What in a manifest does not go together, whatever its checksum says."""

from collections import Counter
from typing import TYPE_CHECKING

from persia_cli.wire.figures import SavedRows

if TYPE_CHECKING:
    from persia_cli.store.manifest import Manifest


def contradiction(manifest: "Manifest") -> str | None:
    """Return a description of a contradiction in a manifest, None if it describes a whole model."""
    places = Counter((file.folder, file.name) for file in manifest.files)
    if twice := [name for (_, name), times in places.items() if times > 1]:
        return f"{twice[0]} is listed twice"
    if flaw := _contradicts_parent(manifest):
        return flaw
    saved = [file.rows for file in manifest.row_files(with_dense=True) if file.rows is not None]
    found: Counter[tuple[int, str]] = Counter()
    for rows in saved:
        found.update({(rows.group, name): number for name, number in rows.all_tables.items()})
    listed = {(table.group, table.name): table.rows for table in manifest.tables}
    for group, name in sorted(found.keys() | listed.keys()):
        if found[group, name] != listed.get((group, name), 0):
            return f"its files have {found[group, name]:,} rows of table {name}, not {listed.get((group, name), 0):,}"
    totals = {str(group): sum(t.rows for t in manifest.tables if t.group == group) for group, _ in listed}
    if totals != manifest.groups or {str(rows.group) for rows in saved} != totals.keys():
        return "its feature groups are not those of its tables and files"
    for group in {rows.group for rows in saved}:
        parts = sorted((rows.first, rows.stop, rows.partitions) for rows in saved if rows.group == group)
        edges = [0, *(stop for _, stop, _ in parts)]
        if [first for first, _, _ in parts] != edges[:-1] or {of for _, _, of in parts} != {edges[-1]}:
            return f"its files do not have every partition of feature group {group} exactly once"
    return None


def _contradicts_parent(manifest: "Manifest") -> str | None:
    """Return a description of a contradiction between the files of changes and the parent, None if there is none."""
    since = None if manifest.parent is None else manifest.parent.step
    if since is not None and since >= manifest.step:
        return f"it is of step {manifest.step}, and its parent of step {since}"
    changed: dict[str, SavedRows] = {}
    rows_or_ids = [*manifest.row_files(with_dense=True), *manifest.deleted_files()]
    for file in manifest.files:
        if (file in rows_or_ids) != (file.rows is not None):
            return f"{file.name} is in the wrong folder"
        if file.rows is not None and file.rows.changed_since not in (None, since):
            return f"{file.name} has what changed since step {file.rows.changed_since}, which is not its parent's"
    for file in manifest.row_files(with_dense=True):
        if file.rows is not None and file.rows.changed_since is not None:
            changed[file.name] = file.rows
            if any(count > file.rows.held.get(name, 0) for name, count in file.rows.tables.items()):
                return f"{file.name} has more changed rows of a table than there are rows in all"
    if since is not None and not changed:
        return "it has a parent, but no file of changed rows"
    for file in manifest.deleted_files():
        other = changed.get(file.name)
        if other is None or file.rows is None or _range(other) != _range(file.rows) or file.rows.changed_since is None:
            return f"{file.name} with deleted ids has no file of changed rows beside it"
    return None


def _range(rows: SavedRows) -> tuple[int, int, int, int]:
    """Return what partitions of which group a file is of."""
    return rows.group, rows.partitions, rows.first, rows.stop
