"""The file of predictions: columns of the data, copied unchanged, next to the scores of each row, in the same order."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

from persia_cli.config.schema import ParquetDataset
from persia_cli.data.read.arrow_types import class_of, plain_type
from persia_cli.data.read.predictions import predictions
from persia_cli.data.read.row_groups import RowGroup, RowGroupReader
from persia_cli.data.read.scan import ParquetScan, scan
from persia_cli.disk import disk_error, is_held, rename, writing
from persia_cli.errors import DataError, UserError, one_line
from persia_cli.metric import Link


class KeptColumns:
    """Reads columns of any type in the order of files and rows; holds one row group. For one thread."""

    def __init__(self, contents: ParquetScan, names: Sequence[str]) -> None:
        """Check the columns in every file; raises DataError with a line for each that is missing or of another type.

        Where types differ only in width the wider one is used; a dictionary is read as the type of its values.
        """
        self.fields: tuple[Any, ...] = _fields(contents, names)
        """An Arrow field for each column, in the order of `names`."""
        self._names = list(names)
        self._reader = RowGroupReader(contents.filesystem)
        self._left = [group for group in contents.groups if group.rows]
        self._table: Any = None

    def take(self, rows: int) -> list[Any]:
        """Return the next `rows` rows, a pyarrow.ChunkedArray for each column; raises DataError as reading may."""
        if not self._names:
            return []
        parts = []
        while rows:
            if self._table is None or not self._table.num_rows:
                self._table = self._read(self._left.pop(0))
            part = self._table.slice(0, rows)
            self._table = self._table.slice(part.num_rows)
            rows -= part.num_rows
            parts.append(part)
        return list(pa.concat_tables(parts).columns) if parts else []

    def close(self) -> None:
        """Close the file that is open."""
        self._reader.close()

    def _read(self, group: RowGroup) -> Any:
        table = self._reader.read(group, self._names)
        try:
            return table.cast(pa.schema(self.fields))
        except pa.ArrowException as error:
            raise DataError(
                f"{group}: a column to keep does not fit the type that it has in other files ({one_line(error)}); make "
                "the files agree"
            ) from error


def _fields(contents: ParquetScan, names: Sequence[str]) -> tuple[Any, ...]:
    """Return fields that fit the columns of every file; raises DataError where a column is missing or does not fit."""
    together = pa.schema([])
    problems = []
    for file, schema in zip(contents.files, contents.schemas, strict=True) if names else ():
        absent = [_absent(name, schema.names) for name in names if schema.names.count(name) != 1]
        if not absent:
            # Without metadata, and with the type of its values in place of a dictionary.
            kinds = {name: plain_type(schema.field(name).type) for name in names}
            file_schema = pa.schema(list(kinds.items()))
            try:
                together = pa.unify_schemas([together, file_schema], promote_options="permissive")
            except pa.ArrowException as error:
                absent = [f"{one_line(error)} of other files; make all files alike"]
        problems += [f"{file.name}: {problem}" for problem in absent]
    if problems:
        raise DataError("\n".join(problems))
    return tuple(together.field(name) for name in names)


def _absent(name: str, there: list[str]) -> str:
    if name in there:
        return f"there are several columns {name}, so that none can be kept"
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]}?" if near else f"columns there are: {', '.join(there[:20])}"
    return f"there is no column {name} to keep; {hint}"


PROBABILITY, PREDICTION, LOGIT = "probability", "prediction", "logit"
"""The endings of score columns, after the name of their label."""

GROUP_ROWS = 2**17
"""Rows that are collected before they are written as one row group."""

FORMATS = (".parquet", ".csv")


@contextmanager
def claimed_scores(path: Path) -> Iterator[None]:
    """Lock this file against other processes that write scores while the context lasts; unfinished files are removed.

    The lock is on the unfinished file and ends with this process, so a file left by a killed process blocks no other.
    Raises UserError if another process holds the lock, DiskError if the file cannot be created.
    """
    part = _part(path)
    with writing(path):
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # The file may have got its final name between its opening and the lock.
        if is_held(descriptor) or not (part.exists() and os.path.samestat(os.fstat(descriptor), part.stat())):
            raise UserError(f"{path} is being written by another persia predict; wait for it, or name another file")
        try:
            yield
        finally:
            with suppress(FileNotFoundError):  # a file that was published may have a successor already
                if os.path.samestat(os.fstat(descriptor), part.stat()):
                    part.unlink()
    finally:
        os.close(descriptor)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


class ScoresFile:
    """A file that grows row by row under a temporary name, and is renamed when it is complete. For one thread.

    The driver holds the lock of `claimed_scores`, and removes a file that was not published.

    Each label has a float32 column `LABEL_probability` and, if wanted, one of its logits, `LABEL_logit`; or, if its
    link says that predictions are other numbers, a float32 column `LABEL_prediction` alone.
    """

    def __init__(
        self, dataset: ParquetDataset, path: Path, links: Mapping[str, Link], keep: Sequence[str], logits: bool
    ) -> None:
        """Begin the scores of a data set, with its columns `keep`.

        Raises DataError for columns that do not exist, and UserError where the file cannot be written or hold these.
        """
        self._path = path
        self._part = _part(path)
        self._kept = KeptColumns(scan(dataset), keep)
        self._links = links
        self._logits = logits
        names = [f"{label}_{kind}" for label, link in links.items() for kind in self._kinds(link)]
        self._schema = pa.schema([*self._kept.fields, *(pa.field(name, pa.float32()) for name in names)])
        _check_columns(path, self._schema)
        self._waiting: list[NDArray[np.float32]] = []
        self._gathered = 0
        self.rows = 0
        """Rows taken so far."""
        try:
            self._writer: Any = (csv.CSVWriter if path.suffix == ".csv" else pq.ParquetWriter)(self._part, self._schema)
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(path, error) from error

    def add(self, logits: NDArray[np.float32]) -> None:
        """Add the logits [n, T] of the next n rows; the array must not change afterwards.

        Raises UserError where writing fails, DataError where the kept columns cannot be read.
        """
        self._waiting.append(logits)
        self._gathered += len(logits)
        self.rows += len(logits)
        if self._gathered >= GROUP_ROWS:
            self._write()

    def publish(self) -> None:
        """Write the remaining rows and give the file its name; raises as `add` does."""
        if self._gathered:
            self._write()
        self._kept.close()
        try:
            self._writer.close()
            rename(self._part, self._path)
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(self._path, error) from error

    def discard(self) -> None:
        """Stop writing; unpublished scores are lost."""
        self._kept.close()
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _kinds(self, link: Link) -> tuple[str, ...]:
        """Return the endings of a label's columns."""
        if link != "logistic":
            return (PREDICTION,)
        return (PROBABILITY, LOGIT) if self._logits else (PROBABILITY,)

    def _write(self) -> None:
        logits = np.concatenate(self._waiting)
        columns = self._kept.take(self._gathered)
        self._waiting, self._gathered = [], 0
        for values, link in zip(logits.T, self._links.values(), strict=True):
            with np.errstate(over="ignore"):
                predicted = predictions(values.astype(np.float64), link).astype(np.float32)
            columns += [pa.array(values if kind == LOGIT else predicted) for kind in self._kinds(link)]
        try:
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        except (OSError, pa.ArrowException) as error:
            raise _unwritable(self._path, error) from error


def _check_columns(path: Path, schema: Any) -> None:
    """Raise UserError for an unknown format, or for columns that it cannot hold."""
    if path.suffix not in FORMATS:
        raise UserError(f"{path.name}: scores are written as Parquet or CSV; end the name in {' or '.join(FORMATS)}")
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise UserError(f"{path.name} would have two columns {twice[0]}; keep each column once")
    for field in schema if path.suffix == ".csv" else ():
        if not _fits_csv(field.type):
            raise UserError(f"column {field.name} is {field.type}, which CSV cannot hold; write .parquet instead")


def _fits_csv(kind: Any) -> bool:
    """Return whether CSV can hold every value of an Arrow type; bytes may be no text."""
    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_string if class_of(kind) == "text" else not pa.types.is_nested(kind)


def _unwritable(path: Path, error: BaseException) -> UserError:
    if isinstance(error, OSError) and error.errno:
        return disk_error(error, path)
    return UserError(f"the scores cannot be written to {path} ({one_line(error)}); give another file")
