"""The files that come to a table after a cursor, commit by commit; whatever is no addition of files is a trap.

A cursor is `NUMBER TAKEN/TOTAL`: the files of a commit of which so many are taken; `all NUMBER …` if the files are all
of the table at this commit, with which a first poll begins.
"""

# Invariants:
#
# - Each file is in one commit, or among all of the first one: no file comes twice, and none is passed over silently.
# - Within a commit the order is that of names, so a cursor between two files of it means the same at every poll.

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from persia_cli.config.schema.follow import Trap
from persia_cli.data.tables import delta, iceberg
from persia_cli.data.tables.places import TableFile, asked
from persia_cli.errors import DataError

OnTrap = Callable[[Trap, str], None]
"""Called with a trap and a sentence; it raises an error, or the trap is passed over."""

BEGIN_AGAIN = "begin a new run with this model, by init_from"
_CURSOR = re.compile(r"(all )?(\d+) (\d+)/(\d+)")
_COMMIT, _CHECKPOINT = re.compile(r"(\d{20})\.json"), re.compile(r"(\d{20})\.checkpoint\b.*")
_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta tables whose files are read as those of other tables."""


class Position(NamedTuple):
    """A cursor, parsed."""

    number: int
    """The snapshot, or the version."""
    taken: int = 0
    total: int = 0
    is_base: bool = False
    """True for all files of the table at this commit."""

    def cursor(self, taken: int, total: int) -> str:
        return f"{'all ' if self.is_base else ''}{self.number} {taken}/{total}"


class Grown(NamedTuple):
    """A file that came, and the cursor after it."""

    file: TableFile
    cursor: str


class Growth(Protocol):
    """A table that grows."""

    def after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[Grown]:
        """Return at most so many files after a cursor, from the present ones for None; raises DataError."""


def position_of(cursor: str) -> Position:
    """Return what a cursor means; raises DataError for the cursor of another kind of data."""
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise DataError(f"{cursor!r} is no position in a table: the run began with other data; {BEGIN_AGAIN}")
    return Position(int(found[2]), int(found[3]), int(found[4]), found[1] is not None)


def _with_cursors(position: Position, files: Sequence[TableFile]) -> Iterable[Grown]:
    """Return the files of a commit after those taken."""
    for number, file in enumerate(files[position.taken :], position.taken + 1):
        yield Grown(file, position.cursor(number, len(files)))


class IcebergGrowth:
    """An Iceberg table; its commits are snapshots, each with a parent."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._added: dict[int, list[TableFile]] = {}
        """The files of snapshots that were looked at and are not trained yet."""

    def after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[Grown]:
        return asked(self._path, iceberg.LIBRARY, partial(self._after, cursor, most, on_trap))

    def _after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[Grown]:
        table = iceberg.load_table(self._path)
        current = table.metadata.current_snapshot()
        if current is None:
            if cursor is not None:
                raise DataError(f"dataset.path={self._path} is empty, and had rows before; {BEGIN_AGAIN}")
            return []
        position = Position(current.snapshot_id, 0, 1, True) if cursor is None else position_of(cursor)
        found: list[Grown] = []
        if position.taken < position.total:
            found += self._rest(table, position, on_trap)
        later = self._later(table, current, position.number, on_trap)
        self._added = {
            each.snapshot_id: self._added[each.snapshot_id] for each in later if each.snapshot_id in self._added
        }
        for snapshot in later:
            if len(found) >= most:
                break
            found += _with_cursors(Position(snapshot.snapshot_id), self._files(table, snapshot, on_trap))
        return found[:most]

    def _rest(self, table: Any, position: Position, on_trap: OnTrap) -> Iterable[Grown]:
        """Return the files that are left of the commit of a cursor."""
        snapshot = table.metadata.snapshot_by_id(position.number)
        if snapshot is None:
            self._lose(position.number, on_trap)
            return []
        if not position.is_base:
            return _with_cursors(position, self._files(table, snapshot, on_trap))
        if (text := iceberg.deleted_rows(self._path, table, snapshot)) is not None:
            on_trap("deletes", text)
        files = iceberg.live_files(self._path, table, snapshot)
        iceberg.require_names(self._path, table, files)
        return _with_cursors(position, files)

    def _later(self, table: Any, current: Any, number: int, on_trap: OnTrap) -> list[Any]:
        """Return the snapshots after one, in their order."""
        chain: list[Any] = []
        snapshot = current
        while snapshot is not None and snapshot.snapshot_id != number:
            chain.append(snapshot)
            if snapshot.parent_snapshot_id == number:
                break
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
        if snapshot is None:
            if table.metadata.snapshot_by_id(number) is not None:
                raise DataError(
                    f"dataset.path={self._path} was set back to a snapshot before {number}, up to which it is trained; "
                    f"{BEGIN_AGAIN}"
                )
            self._lose(number, on_trap)
        return chain[::-1]

    def _lose(self, number: int, on_trap: OnTrap) -> None:
        on_trap(
            "lost_cursor",
            f"dataset.path={self._path}: snapshot {number}, up to which it is trained, and the one after it have "
            f"expired, so files may be missing; {BEGIN_AGAIN}",
        )

    def _files(self, table: Any, snapshot: Any, on_trap: OnTrap) -> list[TableFile]:
        """Return the files that a snapshot added; none of one that rewrote files, and none passed over."""
        from pyiceberg.table.snapshots import Operation

        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return []  # the same rows in other files
        if operation != Operation.APPEND:
            name = "a change" if operation is None else f"a snapshot of kind {operation.value}"
            text = (
                f"dataset.path={self._path}: {name} ({snapshot.snapshot_id}) changed rows that may be trained already, "
                f"and a training can only add; {BEGIN_AGAIN}"
            )
            is_delete = iceberg.deleted_rows(self._path, table, snapshot) is not None
            on_trap("deletes" if is_delete else "not_append", text)
            return []
        if snapshot.snapshot_id not in self._added:
            files = iceberg.added_files(self._path, table, snapshot)
            iceberg.require_names(self._path, table, files)
            self._added[snapshot.snapshot_id] = files
        return self._added[snapshot.snapshot_id]


class DeltaGrowth:
    """A Delta table; its commits are files of its log, numbered by version."""

    def __init__(self, path: str) -> None:
        self._path = path

    def after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[Grown]:
        return asked(self._path, delta.LIBRARY, partial(self._after, cursor, most, on_trap))

    def _after(self, cursor: str | None, most: int, on_trap: OnTrap) -> list[Grown]:
        found: list[Grown] = []
        if cursor is None:
            position = Position(delta.open_delta(self._path).version(), 0, 1, True)
        else:
            position = position_of(cursor)
        filesystem, log = delta.log_of(self._path)
        # After the table is opened, so that no version of it is newer than these.
        commits, latest = self._versions(filesystem, log)
        if latest < position.number:
            raise DataError(
                f"dataset.path={self._path} is at version {latest}, and was at {position.number} before: it was made "
                f"again; {BEGIN_AGAIN}"
            )
        if position.taken < position.total:
            if position.is_base:
                snapshot = delta.delta_files(f"{self._path}@{position.number}")
                found += _with_cursors(position, snapshot.files)
            else:
                found += self._commit(filesystem, log, commits, position, on_trap)
        for version in range(position.number + 1, latest + 1):
            if len(found) >= most:
                break
            found += self._commit(filesystem, log, commits, Position(version), on_trap)
        return found[:most]

    def _versions(self, filesystem: Any, log: str) -> tuple[set[int], int]:
        """Return the versions whose commits are there, and the newest version."""
        from pyarrow import fs

        names = [info.base_name for info in filesystem.get_file_info(fs.FileSelector(log, allow_not_found=True))]
        commits = {int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))}
        checkpoints = {int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))}
        if not commits | checkpoints:
            raise DataError(f"dataset.path={self._path}: there is no Delta table; correct the path")
        return commits, max(commits | checkpoints)

    def _commit(
        self, filesystem: Any, log: str, commits: set[int], position: Position, on_trap: OnTrap
    ) -> Iterable[Grown]:
        """Return the files that a commit added, after those taken; none of one that does something else."""
        version, where = position.number, f"dataset.path={self._path}"
        if version not in commits:
            text = f"{where}: version {version} is not in the log any more, so files may be missing; {BEGIN_AGAIN}"
            on_trap("lost_cursor", text)
            return []
        with filesystem.open_input_stream(f"{log}/{version:020}.json") as source:
            actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
        for action in actions:
            if "metaData" in action:
                delta.require_own_names(self._path, action["metaData"].get("configuration") or {})
            other = set((action.get("protocol") or {}).get("readerFeatures") or ()) - _FEATURES
            if other:
                raise DataError(
                    f"{where} has {', '.join(sorted(other))} since version {version}; copy it into a plain table"
                )
        adds = [each["add"] for each in actions if "add" in each and each["add"].get("dataChange", True)]
        removes = [each["remove"] for each in actions if "remove" in each and each["remove"].get("dataChange", True)]
        marks = any(each.get("deletionVector") for each in adds)
        if marks or removes:
            text = (
                f"{where}: version {version} changed or deleted rows that may be trained already, and a training can "
                f"only add; {BEGIN_AGAIN}"
            )
            on_trap("deletes" if marks else "not_append", text)
            return []
        root = delta.root_of(self._path)
        files = [
            TableFile(delta.place_in(root, each["path"]), each["size"], each["modificationTime"] / 1e3) for each in adds
        ]
        return _with_cursors(position, sorted(files))
