"""The files of a request log: each is hidden while it is written, and gets its name when it is whole and on disk."""

import os
import secrets
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.disk import is_held, rename, writing
from persia_cli.errors import UserError

PREFIX, PART = ".requests-", ".part"
GROUP_BYTES = 2**23
"""Bytes of requests that are written together, as a row group."""
PRIVATE = 0o600


def prepare_folder(folder: Path) -> None:
    """Create a folder for a log, for this user alone, unless it exists; raises UserError if it is not writable."""
    if not folder.parent.is_dir():
        raise UserError(f"--log {folder}: there is no folder {folder.parent}; create it first")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--log {folder} is a file; name a folder")
    with writing(folder):
        folder.mkdir(0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tried")


def remove_abandoned(folder: Path) -> int:
    """Remove the unreadable files of workers that were killed; returns their number."""
    removed = 0
    for path in folder.glob(f"{PREFIX}*{PART}"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not is_held(file.fileno()):
                path.unlink()
                removed += 1
    return removed


class LogFile:
    """A file that is being written; its lock shows other processes that it is not abandoned."""

    def __init__(self, folder: Path, schema: Any) -> None:
        """Create it; raises OSError."""
        while True:
            self._name = secrets.token_hex(4)
            self._path = folder / f"{PREFIX}{self._name}{PART}"
            self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")
            # A worker that starts between these lines takes the file for an abandoned one.
            if not is_held(self._file.fileno()) and self._path.exists():
                break
            self._file.close()
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self.requests, self.rows, self.nbytes = 0, 0, 0
        self.begin = time.monotonic()

    def append(self, batch: Any) -> None:
        """Add a request, and write the pending ones if they are enough; raises OSError."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.requests += 1
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0

    def publish(self) -> None:
        """Give the file its name; raises OSError."""
        self._write()
        self._writer.close()
        self._file.flush()
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        rename(self._path, self._path.with_name(f"{now}Z-{self._name}.parquet"))
        self._file.close()

    def abandon(self) -> None:
        """Remove the file after an error."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()
