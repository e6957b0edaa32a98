"""The files of a request log: requests are added to a hidden file, which becomes a Parquet file when it is full.

A hidden file, `.requests-NAME.arrows`, is an Arrow stream that the process which adds to it has locked. What a process
that was killed has left is not locked: whoever finds it makes a Parquet file of all that is whole in it. Others see
nothing until a Parquet file, `TIME-NAME.parquet`, is whole and on disk.
"""

import errno
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from persia_cli.disk import is_held, rename, writing
from persia_cli.errors import UserError

PREFIX, PENDING, PART = ".requests-", ".arrows", ".part"
ROWS_PER_GROUP = 2**16
"""Rows of a row group of a Parquet file."""
PRIVATE = 0o600


def prepare_folder(folder: Path) -> None:
    """Make a folder for a log, for this user alone, unless it is there; raises UserError if no file can be written."""
    if not folder.parent.is_dir():
        raise UserError(f"--log {folder}: there is no folder {folder.parent}; create it first")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--log {folder} is a file; name a folder")
    with writing(folder):
        folder.mkdir(0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tried")


class PendingFile:
    """A hidden file that only this process adds to."""

    def __init__(self, folder: Path, schema: Any) -> None:
        """Create it; raises OSError."""
        self._schema = schema
        self._descriptor, self.path = _claimed(folder)
        self._size = 0
        self.rows = 0
        self.begin = time.monotonic()

    def append(self, batch: Any) -> None:
        """Add a record batch; raises OSError, and then the file is as it was before."""
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "somebody has removed it", str(self.path))
        content = b"" if self._size else self._schema.serialize().to_pybytes()
        rest = memoryview(content + batch.serialize().to_pybytes())
        size = len(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += size
        self.rows += batch.num_rows

    def close(self) -> None:
        """Leave the file to whoever finds it."""
        os.close(self._descriptor)

    def publish(self) -> None:
        """Make a Parquet file of it; raises OSError, and then it is left to whoever finds it."""
        try:
            _publish(self.path)
        finally:
            self.close()


class Abandoned(NamedTuple):
    """A hidden file that a process had left: how many rows of it are published, or why it could not be done."""

    path: Path
    rows: int
    error: OSError | None = None


def publish_abandoned(folder: Path) -> Iterator[Abandoned]:
    """Make Parquet files of what processes that were killed have left."""
    for path in sorted(folder.glob(f"{PREFIX}*{PENDING}")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ENOENT:
                yield Abandoned(path, 0, error)
            continue
        try:
            if not is_held(descriptor) and path.exists():  # another process may have been here first
                yield Abandoned(path, _publish(path))
        except OSError as error:
            yield Abandoned(path, 0, error)
        finally:
            os.close(descriptor)


def _claimed(folder: Path) -> tuple[int, Path]:
    """Create a hidden file and lock it; of a process that takes it for an abandoned one in between, it gets another."""
    while True:
        path = folder / f"{PREFIX}{secrets.token_hex(4)}{PENDING}"
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, PRIVATE)
        if not is_held(descriptor) and path.exists():
            return descriptor, path
        os.close(descriptor)


def _publish(path: Path) -> int:
    """Make a Parquet file of a hidden one that this process has locked, and remove that; returns its rows."""
    name = path.name.removeprefix(PREFIX).removesuffix(PENDING)
    part = path.with_suffix(PART)
    rows = 0
    # There is one if its process was killed before it could remove the hidden file.
    if not any(path.parent.glob(f"*-{name}.parquet")):
        part.unlink(missing_ok=True)
        batches = _whole_batches(path)
        rows = sum(batch.num_rows for batch in batches)
        try:
            if rows:
                _write(part, pa.Table.from_batches(batches))
                now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
                rename(part, path.with_name(f"{now}Z-{name}.parquet"))
        finally:
            part.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return rows


def _write(path: Path, table: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        pq.write_table(table, file, row_group_size=ROWS_PER_GROUP, compression="zstd")


def _whole_batches(path: Path) -> list[Any]:
    """Return the record batches of a stream up to the first that is not whole."""
    found: list[Any] = []
    try:
        with pa.memory_map(str(path)) as file:
            for batch in pyarrow.ipc.open_stream(file):
                batch.validate()
                found.append(batch)
    except (pa.ArrowException, OSError) as error:
        # Arrow's words for a file that ends too early come without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
    return found
