"""Paths of data whose content has versions: which one is present, and the files of a table's."""

from dataclasses import dataclass

from persia_cli.data.tables.delta import Delta
from persia_cli.data.tables.iceberg import Iceberg
from persia_cli.data.tables.table import FileTable, TableFile, asked, name_and_number, refuse
from persia_cli.errors import DataError
from persia_cli.storage.addresses import DELTA, HUB, ICEBERG

TABLES = (ICEBERG, DELTA)
_FOLDERS = {"dataset": "datasets/", "space": "spaces/"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one moment."""

    path: str
    """The table's path with the snapshot, as `dataset.path` has it."""
    root: str
    """The place of the table."""
    files: tuple[TableFile, ...]
    """Its files in their order of arrival."""


def open_table(path: str) -> FileTable:
    """Return the table that a path names; raises DataError for a name that is none, and errors of its library."""
    return Iceberg(path) if path.startswith(ICEBERG) else Delta(path)


def at_present(path: str) -> str:
    """Return a path that means the same from now on: a table or a repository gets its present snapshot."""
    if path.startswith(HUB):
        return asked(path, lambda: _commit_of_hub(path))
    if path.startswith(TABLES) and name_and_number(path)[1] is None:
        return asked(path, lambda: f"{path}@{_present(path, open_table(path))}")
    return path


def snapshot_of(path: str) -> Snapshot | None:
    """Return the snapshot of a table that a path names; None for other paths.

    Raises DataError, also for a table with deleted rows.
    """
    return asked(path, lambda: _snapshot(path)) if path.startswith(TABLES) else None


def _snapshot(path: str) -> Snapshot:
    (name, number), table = name_and_number(path), open_table(path)
    commit = _present(path, table) if number is None else number
    return Snapshot(f"{name}@{commit}", table.root, tuple(table.files(commit, refuse)))


def _present(path: str, table: FileTable) -> int:
    if (commit := table.present()) is None:
        raise DataError(f"dataset.path={path}: nothing was ever written to the table; write rows to it")
    return commit


def _commit_of_hub(path: str) -> str:
    """Return a path of the Hub with the commit in place of a branch. Buckets have no commits."""
    from huggingface_hub import HfApi, HfFileSystem

    found = HfFileSystem().resolve_path(path)
    if not hasattr(found, "repo_id"):
        return path
    commit = HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
    if commit is None:
        raise DataError(f"dataset.path={path}: the Hub names no commit; give one, as in hf://datasets/USER/NAME@COMMIT")
    return f"{HUB}{_FOLDERS.get(found.repo_type, '')}{found.repo_id}@{commit}/{found.path_in_repo}".rstrip("/")
