"""The files of a request log: requests are added to a hidden file, which becomes a Parquet file when it is full.

A hidden file, `.requests-NAME.pending`, has frames: a schema and record batches of Arrow, each behind its length and
its CRC-32. The process which adds to it has locked it. What a process that was killed has left is not locked: whoever
finds it makes a Parquet file of all that is whole in it. Nothing is given to Arrow whose sum is wrong, since neither
zeros of a power cut nor flipped bits are rows, and reading them can end the process. Others see nothing until a Parquet
file, `TIME-NAME.parquet`, is whole and on disk.
"""

import errno
import os
import secrets
import struct
import tempfile
import time
import zlib
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

PREFIX, PENDING, PART = ".requests-", ".pending", ".part"
ROWS_PER_GROUP = 2**16
"""Rows of a row group of a Parquet file."""
PRIVATE = 0o600
FRAME = struct.Struct("<QI")
"""What stands before each frame: the bytes that it has, and their CRC-32."""


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
        self.rows, self.size = 0, 0
        self.begin = time.monotonic()

    def append(self, batch: Any) -> None:
        """Add a record batch; raises OSError, and then the file is as it was before."""
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "somebody has removed it", str(self.path))
        contents = [batch.serialize()] if self.size else [self._schema.serialize(), batch.serialize()]
        try:
            size = sum(self._write(content) for content in contents)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += size
        self.rows += batch.num_rows

    def _write(self, content: Any) -> int:
        """Write a frame; returns its bytes."""
        for part in (FRAME.pack(content.size, zlib.crc32(content)), content):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return FRAME.size + int(content.size)

    def close(self) -> None:
        """Leave the file to whoever finds it."""
        os.close(self._descriptor)

    def publish(self) -> None:
        """Make a Parquet file of it; raises OSError or ArrowException, and then it is left to whoever finds it."""
        try:
            _publish(self.path)
        finally:
            self.close()


class Abandoned(NamedTuple):
    """A hidden file that a process had left: how many rows of it are published, or why it could not be done."""

    path: Path
    rows: int
    lost: int = 0
    """Bytes of it that are no whole rows."""
    error: OSError | pa.ArrowException | None = None


def publish_abandoned(folder: Path) -> Iterator[Abandoned]:
    """Make Parquet files of what processes that were killed have left."""
    for path in sorted(folder.glob(f"{PREFIX}*{PENDING}")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.ENOENT:
                yield Abandoned(path, 0, error=error)
            continue
        try:
            if not is_held(descriptor) and path.exists():  # another process may have been here first
                yield Abandoned(path, *_publish(path))
        except (OSError, pa.ArrowException) as error:
            yield Abandoned(path, 0, error=error)
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


def _publish(path: Path) -> tuple[int, int]:
    """Make a Parquet file of a hidden one that this process has locked, and remove that.

    Returns its rows, and the bytes that are none.
    """
    name = path.name.removeprefix(PREFIX).removesuffix(PENDING)
    part = path.with_suffix(PART)
    rows, lost = 0, 0
    # There is one if its process was killed before it could remove the hidden file.
    if not any(path.parent.glob(f"*-{name}.parquet")):
        part.unlink(missing_ok=True)
        batches, lost = _whole_batches(path)
        rows = sum(batch.num_rows for batch in batches)
        try:
            if rows:
                _write(part, pa.Table.from_batches(batches))
                now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
                rename(part, path.with_name(f"{now}Z-{name}.parquet"))
        finally:
            part.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return rows, lost


def _write(path: Path, table: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        pq.write_table(table, file, row_group_size=ROWS_PER_GROUP, compression="zstd")


def _whole_batches(path: Path) -> tuple[list[Any], int]:
    """Return the record batches that are whole, and the bytes of the file that are none."""
    schema, batches = None, []
    whole = 0
    for content in _whole_frames(path):
        try:
            if schema is None:
                schema = pyarrow.ipc.read_schema(content)
            else:
                batch = pyarrow.ipc.read_record_batch(content, schema)
                batch.validate(full=True)
                batches.append(batch)
        except (pa.ArrowException, OSError):  # not of the disk: Arrow's word for what ends too early
            if schema is None:
                break
        else:
            whole += FRAME.size + content.size
    return batches, path.stat().st_size - whole


def _whole_frames(path: Path) -> Iterator[Any]:
    """Yield the contents of a file's frames that have their sum; without the first, the schema, none is of use."""
    is_first = True
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while len(head := file.read(FRAME.size)) == FRAME.size:
            size, told = FRAME.unpack(head)
            left -= FRAME.size + size
            if not size or left < 0:
                return
            content = pa.py_buffer(file.read(size))
            if zlib.crc32(content) == told:
                yield content
            elif is_first:
                return
            is_first = False
