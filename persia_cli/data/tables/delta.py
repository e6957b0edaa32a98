"""Delta tables: deltalake reads their versions, and each commit is a file of the log.

Credentials of a store are those of its environment, such as AWS_ACCESS_KEY_ID, for deltalake and for pyarrow.
"""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from persia_cli.data.tables.table import BEGIN_AGAIN, OnTrap, TableFile, divided, name_and_number
from persia_cli.errors import DataError
from persia_cli.storage.addresses import DELTA, local_path, open_uri

_MAPPING = "delta.columnMapping.mode"
_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of tables whose files are read as those of other tables."""


class Delta:
    """A Delta table; its commits are versions, which have no gap."""

    def __init__(self, path: str) -> None:
        self._where = f"dataset.path={path}"
        self._given = name_and_number(path)[0].removeprefix(DELTA).rstrip("/")
        if not self._given:
            raise DataError(f"{self._where} is not a Delta table; write delta:PATH, with @VERSION for an old version")
        if "://" in self._given:
            host, inner = divided(self._given)
            self.root = host + unquote(inner)
        else:
            self._given = self.root = str(local_path(self._given).absolute())

    def present(self) -> int:
        version: int = self._table(None).version()
        return version

    def files(self, commit: int, on_trap: OnTrap) -> list[TableFile]:
        table = self._table(commit)
        features = set(table.protocol().reader_features or ())
        self._require_plain(table.metadata().configuration, features, commit)
        # Its deletion vectors would be read whole, and tables without the feature have none.
        if "deletionVectors" in features and table.deletion_vectors().read_all().num_rows:
            on_trap(
                "deletes",
                f"{self._where} has deleted rows, which are still in its files; write the files again without them "
                "(REORG TABLE … APPLY (PURGE))",
            )
        actions = pa.table(table.get_add_actions()).select(["modification_time", "path", "size_bytes"])
        found = sorted(zip(*(column.to_pylist() for column in actions.columns), strict=True))
        return [self._file(name, nbytes, time) for time, name, nbytes in found]

    def later(self, commit: int, on_trap: OnTrap) -> list[int]:
        filesystem, log = self._log()
        names = [info.base_name for info in filesystem.get_file_info(fs.FileSelector(log, allow_not_found=True))]
        versions = [int(name[:20]) for name in names if name[:20].isdecimal()]
        if not versions:
            raise DataError(f"{self._where}: there is no Delta table; correct the path")
        if max(versions) < commit:
            raise DataError(
                f"{self._where} is at version {max(versions)}, and was at {commit} before: it was made again; "
                f"{BEGIN_AGAIN}"
            )
        return list(range(commit + 1, max(versions) + 1))

    def added(self, commit: int, on_trap: OnTrap) -> list[TableFile]:
        filesystem, log = self._log()
        try:
            with filesystem.open_input_stream(f"{log}/{commit:020}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
        except FileNotFoundError:
            text = f"version {commit} is not in the log any more, so files may be missing; {BEGIN_AGAIN}"
            on_trap("lost_cursor", f"{self._where}: {text}")
            return []
        for action in actions:
            settings = (action.get("metaData") or {}).get("configuration") or {}
            features = (action.get("protocol") or {}).get("readerFeatures") or ()
            self._require_plain(settings, features, commit)
        adds = [each["add"] for each in actions if "add" in each and each["add"].get("dataChange", True)]
        removes = any("remove" in each and each["remove"].get("dataChange", True) for each in actions)
        marks = any(each.get("deletionVector") for each in adds)
        if marks or removes:
            text = (
                f"{self._where}: version {commit} changed or deleted rows that may be trained already, and a "
                f"training can only add; {BEGIN_AGAIN}"
            )
            on_trap("deletes" if marks else "not_append", text)
            return []
        return sorted(self._file(each["path"], each["size"], each["modificationTime"]) for each in adds)

    def _table(self, version: int | None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._given, version)

    def _log(self) -> tuple[Any, str]:
        """Return the file system of the table, and the folder of its log there."""
        filesystem, inner = (fs.LocalFileSystem(), self.root) if "://" not in self.root else open_uri(self._given)
        return filesystem, f"{inner.rstrip('/')}/_delta_log"

    def _file(self, name: str, nbytes: int, time_ms: int) -> TableFile:
        """Return a file by its name in the log, which is encoded like a part of a URI."""
        plain = unquote(name)
        return TableFile(plain if "://" in plain else f"{self.root}/{plain}", nbytes, time_ms / 1e3)

    def _require_plain(self, settings: dict[str, str], features: Iterable[str], version: int) -> None:
        """Raise DataError for a table whose files are not read unchanged."""
        if settings.get(_MAPPING, "none") != "none":
            raise DataError(
                f"{self._where}: the table maps names of columns ({_MAPPING}), so that its files have others; copy it "
                "into a table without the mapping"
            )
        if other := set(features) - _FEATURES:
            raise DataError(
                f"{self._where} has {', '.join(sorted(other))} at version {version}; copy it into a plain table"
            )
