"""Text files as Parquet: each is converted once, kept in a cache, and read from there in later runs.

Training reads blocks of rows in random order, in several loaders, in every epoch. Text cannot be read from its middle
(fields may hold line ends, files may be compressed) and is slow to parse. A converted file is found by the place, size
and modification time of the text file and by the options it is read with; its row groups, and so the order of samples,
depend on the text alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from persia_cli.config.schema.dataset import CsvFormat
from persia_cli.data.read.bad_rows import BadRow, BadRows
from persia_cli.data.read.cache import PREFIX, cache_folder, lock, use
from persia_cli.data.read.csv_files import csv_lines, read_csv
from persia_cli.data.read.files import NOUNS, DataFile, Format
from persia_cli.data.read.json_lines import json_lines, read_json_lines
from persia_cli.data.read.row_groups import GroupedWriter
from persia_cli.data.read.text import TextFile
from persia_cli.errors import DataError, one_line

ROW_GROUP_ROWS = 1 << 15
Progress = Callable[[str, int, int], None]
"""Called with the file being converted, the bytes of all files read so far, and the total."""


def silent(path: str, done: int, total: int) -> None:
    """Ignore the progress."""


_VERSION = 7
_UNREAD = b"persia.unread_rows"
"""Metadata key that marks a converted file."""
_UNREAD_ROWS = msgspec.json.Decoder(tuple[int, list[BadRow]])
PATIENCE_S = 20.0
"""Longest search for a line; in a huge file the message gives the number of the row instead."""
_READINGS: Mapping[Format, int] = {"csv": 1, "jsonl": 2}


def as_parquet(
    filesystem: Any, files: Sequence[DataFile], kind: Format, form: CsvFormat, progress: Progress
) -> tuple[DataFile, ...]:
    """Return the local Parquet files of some text files; those not in the cache are converted first.

    Raises DataError for files that cannot be read or written.
    """
    folder = cache_folder()
    paths = {file: folder / _identity(filesystem, file.path, kind, form) for file in files}
    new = {file for file, path in paths.items() if not lock(path)}
    done, total = 0, sum(_READINGS[kind] * file.nbytes for file in new)

    def read(path: str, nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(path, done, total)

    for file, path in paths.items():
        if file in new:
            if not file.nbytes:
                raise DataError(f"{file.path}: the file is empty; delete it or write it again")
            read(file.path, 0)
        text = TextFile(file.path, partial(read, file.path), filesystem)
        use(path, partial(_convert, text, kind, form, path.name), "text files are converted")
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


def _convert(file: TextFile, kind: Format, form: CsvFormat, identity: str, part: Path) -> None:
    unread = BadRows(0)
    reject = partial(unread.reject, file.path, 0)
    scratch = part.with_suffix(".texts.part")
    try:
        tables = read_csv(file, form, reject, scratch) if kind == "csv" else read_json_lines(file, reject)
        with GroupedWriter(part, ROW_GROUP_ROWS) as writer:
            for table in tables:
                writer.write(table)
            writer.metadata[_UNREAD] = msgspec.json.encode((unread.count, unread.found))
    except pa.ArrowException as error:
        keys = "see the keys of dataset.csv: delimiter, header, quote and nulls"
        hint = keys if kind == "csv" else "correct the file"
        raise DataError(f"{file.path}: cannot be read as {NOUNS[kind]} ({one_line(error)}); {hint}") from error
    finally:
        scratch.unlink(missing_ok=True)
    if _identity(file.filesystem, file.path, kind, form) != identity:
        raise DataError(f"{file.path} was changed, replaced or removed while it was read; start again")
