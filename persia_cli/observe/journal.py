"""Journals, files of one JSON object per line: `metrics.jsonl` and `events.jsonl` of a run directory."""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from persia_cli.disk import claim, is_held, open_regular, writing
from persia_cli.errors import DiskError, DiskFaultError, UserError

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
PORTIONS = "portions.jsonl"
"""The portions of data that grows, which `persia_cli.roles.coordinator.portions` writes."""
MOST_BYTES = 2**30
"""Maximum size of a journal that is read: more would not fit in memory."""
WAITING_BYTES = 2**24
"""Maximum size of the lines that wait in memory while a disk takes none."""


class Journal:
    """A file to which objects are appended, one per line; readers can detect an incomplete line.

    While the disk is full or fails, lines wait in memory, and a later call writes them in order. Raise DiskError if
    they take more than WAITING_BYTES, and for other errors of the disk. Any thread may call it.
    """

    def __init__(self, path: Path, alone: bool = False) -> None:
        """Open or create the file; `alone` locks it against other writers that do the same.

        Raise UserError if another process has locked it.
        """
        self._path = path
        self._waiting = bytearray()
        self._lock = threading.Lock()
        with writing(path):
            self._file = path.open("ab", buffering=0)
            if alone and not claim(self._file.fileno()):
                self._file.close()
                raise UserError(f"{path} is being written by another process: this run is still running")

    def require_there(self) -> None:
        """Raise DiskError if the file has been removed, so that all lines would be lost."""
        if not os.fstat(self._file.fileno()).st_nlink:
            raise DiskError(f"{self._path} was removed while it was being written; start again in another folder")

    def write(self, **fields: Any) -> None:
        """Append an object; `time` (seconds since 1970) comes first, and numbers that are not finite become null."""
        line = {"time": round(time.time(), 6)} | {key: _plain(value) for key, value in fields.items()}
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._waiting += text
            try:
                self._flush()
            except DiskFaultError:
                if len(self._waiting) > WAITING_BYTES:
                    raise

    def flush(self) -> None:
        """Write the lines that wait, as far as the disk takes them; raise DiskError for other errors than a fault."""
        with self._lock, suppress(DiskFaultError):
            self._flush()

    def _flush(self) -> None:
        """Write the lines that wait; after a DiskError, those that are in the file as a whole wait no longer."""
        written = 0
        with writing(self._path):
            try:
                with memoryview(self._waiting) as rest:
                    while written < len(rest):
                        written += self._file.write(rest[written:])
            except OSError:
                whole = self._waiting.rfind(b"\n", 0, written) + 1
                del self._waiting[:whole]
                # Only now: a stat may wait for a network file system.
                os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - (written - whole))
                raise
        self._waiting.clear()

    @property
    def nbytes(self) -> int:
        """Size of all lines, with those that wait."""
        with self._lock, writing(self._path):
            return os.fstat(self._file.fileno()).st_size + len(self._waiting)

    def close(self) -> None:
        """Close the file; raises DiskError if lines are lost."""
        try:
            with self._lock:
                self._flush()
        finally:
            self._file.close()


@contextmanager
def understanding(run_dir: Path) -> Iterator[None]:
    """Raise UserError if lines of a run's journals do not have the keys and values that the block expects."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"the key {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"the record of {run_dir} ({METRICS}, {EVENTS}) is damaged or from another version of persia: {what}"
        ) from error


def is_being_written(path: Path) -> bool:
    """Return True if a process has locked the journal; for that of a run this is the coordinator."""
    try:
        with open_regular(path, MOST_BYTES) as file:
            return is_held(file.fileno())
    except OSError:
        return True  # since it is unknown


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def drop_half_a_line(path: Path) -> None:
    """Cut off an incomplete last line, which a killed process left; no process may write the file any more."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a journal for reading; raises FileNotFoundError, and UserError for a file that is none, or is too large."""
    try:
        file = open_regular(path, MOST_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        yield file


class Tail:
    """A reader of a journal that another process is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._lines = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of the lines completed since the last call; raises UserError for a damaged line."""
        with suppress(FileNotFoundError), reading(self._path) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self._lines += 1
                yield self._object(line)

    def _object(self, line: bytes) -> dict[str, Any]:
        if (fields := object_of(line)) is None:
            raise UserError(f"{self._path} is damaged: line {self._lines} cannot be read; remove this line")
        return fields


def object_of(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line; None if it is damaged."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("time", 0), int | float) else None


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return all objects of a journal; a missing file has none. Raises UserError if it is damaged."""
    return list(Tail(path).new())


class GrowingJournals:
    """A reader of journals that grow: of each file, `read` reads what is new since the last call."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, int, Tail, list[dict[str, Any]]]] = {}
        """Inode and size, reader and objects of each file."""
        self.damage = ""
        """A sentence about the last line that could not be read."""

    def read(self, path: Path) -> list[dict[str, Any]]:
        """Return all objects of a journal, but for damaged lines."""
        stat = path.stat() if path.exists() else None
        number, size = (stat.st_ino, stat.st_size) if stat else (0, 0)
        inode, before, tail, lines = self._known.get(path, (0, 0, Tail(path), []))
        if number != inode or size < before:  # a resume has replaced it
            tail, lines = Tail(path), []
        self._known[path] = number, size, tail, lines
        try:
            lines.extend(tail.new())
        except UserError as error:
            self.damage = str(error)
        return lines
