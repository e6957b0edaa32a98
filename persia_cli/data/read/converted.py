"""Text files as Parquet: each is converted once, kept in a cache, and read from there in later runs.

Training reads blocks of rows in random order, in several loaders, in every epoch. Text cannot be read from its middle
(fields may hold line ends, files may be compressed) and is slow to parse. A converted file is found by the place, size
and modification time of the text file and by the options it is read with; its row groups, and so the order of samples,
depend on the text alone.
"""

import csv
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.csv_files import BLOCK_BYTES, read_csv
from persia_cli.data.read.encodings import not_utf8, refuse_utf16
from persia_cli.data.read.files import NOUNS, DataFile, Format
from persia_cli.data.read.json_lines import read_json_lines
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.data.read.text_files import TextStream, UnreadRows, delimiter_of
from persia_cli.disk import is_held, rename
from persia_cli.errors import DataError, one_line

CACHE = "PERSIA_CACHE_DIR"
"""Environment variable that names the folder of converted files; by default ~/.cache/persia."""
ROW_GROUP_ROWS = 1 << 15
UNUSED_DAYS = 30
"""Age after the last use at which converted files are removed."""

Progress = Callable[[str, int, int], None]
"""Called with the file being converted, the bytes of all files read so far, and the total; each file is read twice."""


def silent(path: str, done: int, total: int) -> None:
    """Ignore the progress."""


_VERSION = 4
PREFIX = "persia-"
"""The names of all files in the folder that Persia has written, and may remove, begin with this."""
_UNREAD = b"persia.unread_rows"
"""Metadata key that marks a converted file."""
_HELD: dict[Path, int] = {}
"""The converted files that this process has used, each as a descriptor with a shared lock."""


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
    paths = {file: folder / _identity(filesystem, file, kind, form) for file in files}
    new = [file for file, path in paths.items() if not _hold(path)]
    if new:
        _remove_unused(folder)
    done, total = 0, sum(2 * file.nbytes for file in new)
    for file, path in paths.items():
        if file in new:
            _convert(filesystem, file, kind, form, path, partial(_report, progress, done, total))
            _hold(path)
            done += 2 * file.nbytes
        with suppress(OSError):  # the cache of another user works as well
            os.utime(path)
    return tuple(DataFile(str(path), file.nbytes, file.path) for file, path in paths.items())


def _report(progress: Progress, before: int, total: int, path: str, done: int, _: int) -> None:
    progress(path, before + done, total)


def unread_rows(metadata: Any) -> UnreadRows:
    """Return the rows that conversion left out, from a Parquet file's metadata."""
    held = (metadata.metadata or {}).get(_UNREAD)
    return UnreadRows() if held is None else UnreadRows.from_json(held)


def _identity(filesystem: Any, file: DataFile, kind: Format, form: CsvFormat) -> str:
    info = filesystem.get_file_info(file.path)
    about = [_VERSION, filesystem.type_name, file.path, info.size, info.mtime_ns, kind, form.model_dump_json()]
    if filesystem.type_name == "local":  # a replaced file may have the same size and time: cp -p, rsync -t
        own = Path(file.path).stat()
        about += [own.st_ino, own.st_ctime_ns]
    return f"{PREFIX}{sha256(repr(about).encode()).hexdigest()[:40]}.parquet"


def _convert(filesystem: Any, file: DataFile, kind: Format, form: CsvFormat, path: Path, progress: Progress) -> None:
    if not file.nbytes:
        raise DataError(f"{file.path}: the file is empty; delete it or write it again")
    unread = UnreadRows()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{PREFIX}{uuid4().hex}.part")
        part.touch(exist_ok=False)  # for all who share the cache, as far as the umask allows it
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        refuse_utf16(filesystem, file)
        open_file = _opener(filesystem, file, progress)
        if kind == "csv":
            tables = read_csv(open_file, form, delimiter_of(file, form), unread)
        else:
            tables = read_json_lines(open_file, file.path, unread)
        with closing(tables):  # whatever happens: what reads the file ends before its error goes on
            _write(tables, part, unread, file)
        rename(part, path)
    except (pa.ArrowException, csv.Error, UnicodeDecodeError) as error:
        if (other := not_utf8(file, error)) is not None:
            raise other from error
        keys = "see the keys of dataset.csv: delimiter, header, quote and nulls"
        hint = keys if kind == "csv" else "correct the file"
        raise DataError(f"{file.path}: cannot be read as {NOUNS[kind]} ({_cause(error)}); {hint}") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def _write(tables: Iterator[Any], part: Path, unread: UnreadRows, file: DataFile) -> None:
    """Write tables of one schema in row groups of equal size, and the rows that were left out to the metadata."""
    with GroupedWriter(part, ROW_GROUP_ROWS) as writer:
        for table in tables:
            writer.write(table if isinstance(table, pa.Table) else pa.Table.from_batches([table]))
        if writer.is_empty:
            raise DataError(f"{file.path}: the file is empty; delete it or write it again")
        writer.metadata[_UNREAD] = unread.to_json()


def _opener(filesystem: Any, file: DataFile, progress: Progress) -> Callable[[], TextStream]:
    """Return a function that opens the file from its beginning; it reports progress over all its openings."""
    opened, most = count(), 2 * file.nbytes

    def open_file() -> TextStream:
        before = next(opened) * file.nbytes
        return TextStream(filesystem, file, lambda done: progress(file.path, min(before + done, most), file.nbytes))

    progress(file.path, 0, file.nbytes)
    return open_file


def _hold(path: Path) -> bool:
    """Lock a converted file until this process ends, so that no process removes it; returns False if it is missing."""
    if not os.access(path, os.R_OK):
        return False
    if path not in _HELD:
        with suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.fstat(file).st_nlink:
                _HELD[path] = file
            else:
                os.close(file)  # another process removed it between the opening and the lock
    return path in _HELD


def _remove_unused(folder: Path) -> None:
    """Remove converted files that no process uses or has used for long, and the remains of killed conversions."""
    for path in folder.glob(f"{PREFIX}*"):
        is_part = path.suffix == ".part"
        with suppress(OSError), path.open("rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            is_old = age > 86_400 * (1 if is_part else UNUSED_DAYS)
            if is_old and (is_part or _is_converted(path)) and not is_held(file.fileno()):
                path.unlink()


def _is_converted(path: Path) -> bool:
    try:
        return _UNREAD in (pq.read_metadata(path).metadata or {})
    except pa.ArrowException:
        return False


def _cause(error: Exception) -> str:
    """Return the cause of an error in a text file; pyarrow's words for a row longer than a block are replaced."""
    text = one_line(error)
    most = f"{BLOCK_BYTES >> 20} MiB"
    if "straddl" in text:
        return f"a row or field is longer than {most}; is a quote left open?"
    return "the file holds blank lines alone" if "Empty CSV file" in text else text


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"text files are converted into {path.parent}, which cannot be written ({one_line(error)}); make room there or "
        f"name another folder by {CACHE}"
    )
