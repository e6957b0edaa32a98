"""The Parquet files that a path means: their columns, their rows, and what makes their splits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.data.files import DataFile, find_files, locate
from persia_cli.data.rowgroup import one_line
from persia_cli.errors import DataError

BATCH_ROWS = 65536
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Files with the same columns, in the order that rows are numbered in."""

    path: str
    filesystem: Any
    files: tuple[DataFile, ...]
    rows: tuple[int, ...]
    """Of each file."""
    row_groups: int
    schema: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows that follow each other in a file."""

    file: DataFile
    first: int
    """Number of the first row, counted over all files."""
    batch: Any


def open_place(path: str) -> Place:
    """Look at the footer of every file; raises DataError for what is no Parquet, has no rows or differs in columns."""
    place = locate(path)
    files = find_files(place)
    if not files:
        raise DataError(
            f"{path} does not exist or has no Parquet file; give a file, a folder or a URI of Parquet, and prepare "
            "other formats first (persia recipe ls)"
        )
    rows, row_groups = [], 0
    _, schema = _footer(place.filesystem, files[0])
    for file in files:
        metadata, own = _footer(place.filesystem, file)
        if not own.equals(schema):
            raise DataError(f"{file.path} has other columns or types than {files[0].path}; give files that are alike")
        rows.append(metadata.num_rows)
        row_groups += metadata.num_row_groups
    if not sum(rows):
        raise DataError(f"{path}: the files hold no rows; prepare them again")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise DataError(f"{files[0].path}: there are several columns {twice[0]}; give each a name of its own")
    return Place(path, place.filesystem, files, tuple(rows), row_groups, schema)


def read_rows(place: Place, columns: list[str]) -> Iterator[Rows]:
    """Yield all rows in order, some ten thousand at a time, and read the next ones ahead on a thread.

    Memory does not depend on the size of files or row groups. Raises DataError where a file is damaged.
    """
    batches = _batches(place, columns)
    with ThreadPoolExecutor(1, thread_name_prefix="persia-read") as thread:
        coming = thread.submit(next, batches, None)
        while (rows := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield rows


def file_name(file: DataFile) -> str:
    """Return a file's name without its folders."""
    return PurePosixPath(file.path).name


def _batches(place: Place, columns: list[str]) -> Iterator[Rows]:
    first = 0
    for file in place.files:
        try:
            with (
                place.filesystem.open_input_file(file.path) as source,
                pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as parquet,
            ):
                for batch in parquet.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                    yield Rows(file, first, batch)
                    first += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file.path}: cannot be read ({one_line(error)}); prepare the file again") from error


def _footer(filesystem: Any, file: DataFile) -> tuple[Any, Any]:
    try:
        with filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as parquet:
            return parquet.metadata, parquet.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file.path} is not a readable Parquet file ({one_line(error)}); give Parquet, and prepare other formats "
            "first (persia recipe ls)"
        ) from error
