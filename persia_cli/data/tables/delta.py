"""Delta tables: deltalake reads the log, and the files are read as those of a folder.

Credentials of a store are those of its environment, such as AWS_ACCESS_KEY_ID, for deltalake and for pyarrow.
"""

import re
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from persia_cli.data.tables.places import Snapshot, TableFile, asked, divided
from persia_cli.errors import DataError
from persia_cli.storage.addresses import DELTA, local_path, open_uri

LIBRARY = "deltalake"
_NAME = re.compile(rf"{DELTA}(?P<place>.+?)(?:@(?P<version>[0-9]+))?")
_MAPPING = "delta.columnMapping.mode"


def delta_at_present(path: str) -> str:
    """Return the path of a table at its present version, unless it names one; raises DataError."""
    if _parsed(path)["version"]:
        return path
    return asked(path, LIBRARY, lambda: f"{path}@{open_delta(path).version()}")


def delta_files(path: str) -> Snapshot:
    """Return a table at the version that its path names; raises DataError, also for a table with deleted rows."""
    return asked(path, LIBRARY, lambda: _files(path))


def _files(path: str) -> Snapshot:
    table, root = open_delta(path), root_of(path)
    # Its deletion vectors would be read whole, and tables without the feature have none.
    if "deletionVectors" in (table.protocol().reader_features or ()) and table.deletion_vectors().read_all().num_rows:
        raise DataError(
            f"dataset.path={path} has deleted rows, which are still in its files; write the files again without them "
            "(REORG TABLE … APPLY (PURGE))"
        )
    actions = pa.table(table.get_add_actions()).select(["modification_time", "path", "size_bytes"])
    found = sorted(zip(*(column.to_pylist() for column in actions.columns), strict=True))
    files = (TableFile(place_in(root, name), nbytes, time / 1e3) for time, name, nbytes in found)
    return Snapshot(f"{DELTA}{_parsed(path)['place']}@{table.version()}", root, tuple(files))


def _parsed(path: str) -> re.Match[str]:
    found = _NAME.fullmatch(path)
    if found is None:
        raise DataError(f"dataset.path={path} is not a Delta table; write delta:PATH, with @VERSION for an old version")
    return found


def root_of(path: str) -> str:
    """Return the place of a table."""
    given = _parsed(path)["place"].rstrip("/")
    if "://" not in given:
        return str(local_path(given).absolute())
    host, inner = divided(given)
    return host + unquote(inner)


def place_in(root: str, name: str) -> str:
    """Return the place of a file by its name in the log, which is encoded like a part of a URI."""
    plain = unquote(name)
    return plain if "://" in plain else f"{root}/{plain}"


def open_delta(path: str) -> Any:
    """Return deltalake's table at the version that its path names, by default the present one."""
    from deltalake import DeltaTable

    given, version = _parsed(path)["place"], _parsed(path)["version"]
    place = given if "://" in given else root_of(path)
    table = DeltaTable(place, None if version is None else int(version))
    require_own_names(path, table.metadata().configuration)
    return table


def log_of(path: str) -> tuple[Any, str]:
    """Return the file system of a table, and the folder of its log there."""
    given = _parsed(path)["place"].rstrip("/")
    if "://" not in given:
        return LocalFileSystem(), f"{root_of(path)}/_delta_log"
    filesystem, inner = open_uri(given)
    return filesystem, f"{inner.rstrip('/')}/_delta_log"


def require_own_names(path: str, configuration: dict[str, str]) -> None:
    """Raise DataError for a table whose files have other names of columns than the table."""
    if configuration.get(_MAPPING, "none") != "none":
        raise DataError(
            f"dataset.path={path}: the table maps names of columns ({_MAPPING}), so that its files have others; copy "
            "it into a table without the mapping"
        )
