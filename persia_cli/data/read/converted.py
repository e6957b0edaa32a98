"""Text files as Parquet: each is converted once, kept in a cache, and read from there in later runs.

Training reads blocks of rows in random order, in several loaders, in every epoch. Text cannot be read from its middle
(fields may hold line ends, files may be compressed) and is slow to parse. A converted file is found by the place, size
and modification time of the text file and by the options it is read with; its row groups, and so the order of samples,
depend on the text alone.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.bad_rows import BadRow, BadRows
from persia_cli.data.read.csv_files import csv_lines, read_csv
from persia_cli.data.read.files import NOUNS, DataFile, Format
from persia_cli.data.read.json_lines import json_lines, read_json_lines
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.data.read.text import TextFile
from persia_cli.disk import is_held, rename
from persia_cli.errors import DataError, one_line

CACHE = "PERSIA_CACHE_DIR"
"""Environment variable that names the folder of converted files; by default ~/.cache/persia."""
EVENTS = ".events"
"""The ending of stores of events (`persia_cli.data.read.events`), which lie in the same folder."""
ROW_GROUP_ROWS = 1 << 15
UNUSED_DAYS = 30
"""Age after the last use at which converted files and stores of events are removed."""

Progress = Callable[[str, int, int], None]
"""Called with the file being converted, the bytes of all files read so far, and the total."""


def silent(path: str, done: int, total: int) -> None:
    """Ignore the progress."""


_VERSION = 7
PREFIX = "persia-"
"""The names of all files in the folder that Persia has written, and may remove, begin with this."""
_UNREAD = b"persia.unread_rows"
"""Metadata key that marks a converted file."""
_UNREAD_ROWS = msgspec.json.Decoder(tuple[int, list[BadRow]])
PATIENCE_S = 20.0
"""Longest search for a line; in a huge file the message gives the number of the row instead."""
BUILD_S = 3600.0
"""Longest wait for a file that another process makes."""
_GUARD = ".lock"
_READINGS: Mapping[Format, int] = {"csv": 1, "jsonl": 2}
_LOCKS: dict[Path, int] = {}
"""The files of the folder that this process has used, each as a descriptor with a shared lock."""


def cache_folder() -> Path:
    """Return the folder of converted files."""
    named = os.environ.get(CACHE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(named) if named else Path(base) / "persia").expanduser() / "text"


def as_parquet(
    filesystem: Any, files: Sequence[DataFile], kind: Format, form: CsvFormat, progress: Progress
) -> tuple[DataFile, ...]:
    """Return the local Parquet files of some text files; those not in the cache are converted first.

    Raises DataError for files that cannot be read or written.
    """
    folder = cache_folder()
    paths = {file: folder / _identity(filesystem, file.path, kind, form) for file in files}
    new = [file for file, path in paths.items() if not lock(path)]
    done, total = 0, sum(_READINGS[kind] * file.nbytes for file in new)
    if new:
        remove_unused(folder)
    for file in new:
        if not file.nbytes:
            raise DataError(f"{file.path}: the file is empty; delete it or write it again")

        def read(nbytes: int, path: str = file.path) -> None:
            nonlocal done
            done += nbytes
            progress(path, done, total)

        read(0)
        try:
            with building(paths[file]) as is_missing:
                if is_missing:
                    _convert(TextFile(file.path, read, filesystem), kind, form, paths[file])
                lock(paths[file])
        except OSError as error:
            raise not_written("text files are converted", folder, error) from error
    for path in paths.values():
        with suppress(OSError):  # the cache of another user works as well
            os.utime(path)
    return tuple(DataFile(str(path), file.nbytes, file.path) for file, path in paths.items())


def unread_rows(metadata: Any) -> BadRows:
    """Return the rows that conversion left out, from a Parquet file's metadata."""
    encoded = (metadata.metadata or {}).get(_UNREAD)
    return BadRows(0) if encoded is None else BadRows(0, *_UNREAD_ROWS.decode(encoded))


def line_of(file: TextFile, kind: Format, form: CsvFormat, row: int) -> int | None:
    """Return the line that a converted row begins on; both count from the first. None if the search takes too long."""
    end = time.monotonic() + PATIENCE_S
    for lines in csv_lines(file, form) if kind == "csv" else json_lines(file):
        if time.monotonic() > end:
            break
        if row < len(lines):
            return int(lines[row])
        row -= len(lines)
    return None


def _identity(filesystem: Any, path: str, kind: Format, form: CsvFormat) -> str:
    info = filesystem.get_file_info(path)
    about = [_VERSION, filesystem.type_name, path, info.size, info.mtime_ns, kind, form.model_dump_json()]
    if (
        filesystem.type_name == "local" and info.is_file
    ):  # a replaced file may have the same size and time: cp -p, rsync -t
        stat = Path(path).stat()
        about += [stat.st_ino, stat.st_ctime_ns]
    return f"{PREFIX}{sha256(repr(about).encode()).hexdigest()[:40]}.parquet"


def _convert(file: TextFile, kind: Format, form: CsvFormat, path: Path) -> None:
    unread = BadRows(0)
    reject = partial(unread.reject, file.path, 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{PREFIX}{uuid4().hex}.part")
        scratch = part.with_suffix(".texts.part")
        part.touch(exist_ok=False)  # for all who share the cache, as far as the umask allows it
        try:
            tables = read_csv(file, form, reject, scratch) if kind == "csv" else read_json_lines(file, reject)
            with GroupedWriter(part, ROW_GROUP_ROWS) as writer:
                for table in tables:
                    writer.write(table)
                writer.metadata[_UNREAD] = msgspec.json.encode((unread.count, unread.found))
            if _identity(file.filesystem, file.path, kind, form) != path.name:
                raise DataError(f"{file.path} was changed, replaced or removed while it was read; start again")
            rename(part, path)
        finally:
            part.unlink(missing_ok=True)
            scratch.unlink(missing_ok=True)
    except pa.ArrowException as error:
        keys = "see the keys of dataset.csv: delimiter, header, quote and nulls"
        hint = keys if kind == "csv" else "correct the file"
        raise DataError(f"{file.path}: cannot be read as {NOUNS[kind]} ({one_line(error)}); {hint}") from error
    except OSError as error:
        raise not_written("text files are converted", path.parent, error) from error


def not_written(what: str, folder: Path, error: OSError) -> DataError:
    """Return an error for a cache that cannot be written."""
    return DataError(
        f"{what} into {folder}, which cannot be written ({one_line(error)}); free space there or name another folder "
        f"by {CACHE}"
    )


def lock(path: Path) -> bool:
    """Lock a file of the folder until this process ends, so that none removes it; return False if it is missing."""
    if not os.access(path, os.R_OK):
        return False
    if path not in _LOCKS:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.fstat(file).st_nlink:
                _LOCKS[path] = file
            else:
                os.close(file)  # another process removed it between the opening and the lock
    return path in _LOCKS


@contextmanager
def building(path: Path, wait_s: float = BUILD_S, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Let one process at a time make a file of the folder; give True if it is still missing, which the block changes.

    `waiting` is called again and again while another makes it. The system releases the lock of a process that dies.
    Raises DataError if another holds it for longer than `wait_s`, and OSError for a folder that cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    guard = path.with_suffix(_GUARD)
    end = time.monotonic() + wait_s
    with guard.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DataError(
                        f"another process has been making {path} for {wait_s:.0f} s; end it, or name another folder "
                        f"by {CACHE}"
                    ) from None
                waiting()
                time.sleep(0.05)
        try:
            yield not lock(path)
        finally:
            guard.unlink(missing_ok=True)  # one that waits has it open, and finds the file made


def remove_unused(folder: Path) -> None:
    """Remove files of the folder that no process uses or has used for long, and the remains of killed conversions."""
    for path in folder.glob(f"{PREFIX}*"):
        is_part = path.suffix in (".part", _GUARD)
        with suppress(OSError), path.open("rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            is_old = age > 86_400 * (1 if is_part else UNUSED_DAYS)
            if is_old and (is_part or _is_converted(path)) and not is_held(file.fileno()):
                path.unlink()


def _is_converted(path: Path) -> bool:
    if path.suffix == EVENTS:
        return True
    try:
        return _UNREAD in (pq.read_metadata(path).metadata or {})
    except pa.ArrowException:
        return False
