"""Parts of a data set: one thread makes one Parquet file of each, and makes it again if it was not finished."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.data.prepare.text import TextBlock, TextFormat, block_of
from persia_cli.data.read.bad_rows import BadRows
from persia_cli.data.read.text import TextFile, is_compressed, read_rows
from persia_cli.errors import DataError, one_line

PART_BYTES = 1 << 28
"""Bytes of a plain text file that become one part."""


class PartLog:
    """Counts the progress and the bad rows of one part while it is made."""

    def __init__(self, bad: BadRows, progress: Callable[[int], None]) -> None:
        """Take the bad rows of the whole data set, and `progress`, which gets bytes read and may raise to stop."""
        self.bad = BadRows(bad.allowed)
        """Bad rows of this part."""
        self._all = bad
        self._progress = progress

    def reject(self, file: Path, start: int, lines: NDArray[np.int64], reasons: Sequence[str]) -> None:
        """Count rows of a file that is read from byte `start` on."""
        for bad in (self.bad, self._all):
            bad.reject(file, start, lines, reasons)

    def check(self) -> None:
        """Raise DataError if the data set has too many bad rows."""
        self._all.raise_if_too_many()

    def read(self, nbytes: int) -> None:
        """Report that `nbytes` more bytes of the source were read."""
        self._progress(nbytes)


@dataclass(frozen=True)
class DatasetPart:
    """The plan of one Parquet file."""

    name: str
    """The file's name without .parquet."""
    inputs: tuple[Path, ...]
    """Files that its rows depend on: if one has changed, a finished part is made again."""
    tables: Callable[[PartLog], Iterator[Any]]
    """Yields its rows as Arrow tables of one schema; raises DataError."""
    nbytes: int | None = None
    """Bytes of the source that it reads, if not all of its inputs."""

    @property
    def source_bytes(self) -> int:
        """Bytes of the source that it reads, for the progress."""
        return sum(file.stat().st_size for file in self.inputs) if self.nbytes is None else self.nbytes


def text_parts(
    file: Path, format: TextFormat, table: Callable[[TextBlock], Any], also: Sequence[Path] = ()
) -> list[DatasetPart]:
    """Return the parts of a text file; `table` makes an Arrow table of a block, and reads the files `also`.

    A plain file becomes one part per 256 MiB, so that several threads work on it. Raises DataError if the header does
    not name the columns.
    """
    if format.header:
        format.check_header(file)
    size = file.stat().st_size
    step = max(size, 1) if is_compressed(file) else PART_BYTES
    stem = file.name.split(".")[0]

    def part(number: int, start: int) -> DatasetPart:
        stop = None if start + step >= size else start + step

        def tables(log: PartLog) -> Iterator[Any]:
            for block in read_blocks(file, format, log, start, stop):
                yield table(block)

        return DatasetPart(f"{stem}-{number:04}", (file, *also), tables, min(step, size - start))

    return [part(number, start) for number, start in enumerate(range(0, max(size, 1), step))]


def read_blocks(
    file: Path, format: TextFormat, log: PartLog, start: int = 0, stop: int | None = None
) -> Iterator[TextBlock]:
    """Yield the rows of a text file, or those whose lines begin in bytes [start, stop), in blocks.

    The first line of a file with a header is not a row. Raises DataError if the file cannot be read, is damaged, or
    gives the data set too many bad rows.
    """
    reject = partial(log.reject, file.absolute(), start)
    try:
        for rows in read_rows(TextFile(str(file), log.read), format, reject, start, stop):
            yield block_of(rows, format, reject)
            log.check()
    except pa.ArrowException as error:
        log.check()
        raise DataError(f"{file} cannot be read as text in columns: {one_line(error)}") from error
    log.check()


def read_table(file: Path, format: TextFormat, table: Callable[[TextBlock], Any], bad: BadRows) -> Any:
    """Return a small text file, e.g. a table of user attributes, as one Arrow table; raises DataError."""
    if format.header:
        format.check_header(file)
    tables = [table(block) for block in read_blocks(file, format, PartLog(bad, lambda _: None))]
    bad.raise_if_too_many()
    if not tables:
        raise DataError(f"{file} holds no rows")
    return pa.concat_tables(tables)
