"""Columns of a data set that are copied unchanged to the predictions, such as the ids of rows."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from persia_cli.data.arrow_types import plain_type
from persia_cli.data.rowgroup import RowGroup, RowGroupReader
from persia_cli.data.scan import ParquetScan
from persia_cli.errors import DataError, one_line


class KeptColumns:
    """Reads columns of any type in the order of files and rows; holds one row group. For one thread."""

    def __init__(self, found: ParquetScan, names: Sequence[str]) -> None:
        """Check the columns in every file; raises DataError with a line for each that is missing or of another type.

        Where types differ only in width the wider one is used; a dictionary is read as the type of its values.
        """
        self.fields: tuple[Any, ...] = _fields(found, names)
        """An Arrow field for each column, in the order of `names`."""
        self._names = list(names)
        self._reader = RowGroupReader(found.filesystem)
        self._left = [group for group in found.groups if group.rows]
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


def _fields(found: ParquetScan, names: Sequence[str]) -> tuple[Any, ...]:
    """Return fields that fit the columns of every file; raises DataError where a column is missing or does not fit."""
    together = pa.schema([])
    problems = []
    for file, schema in zip(found.files, found.schemas, strict=True) if names else ():
        absent = [_absent(name, schema.names) for name in names if schema.names.count(name) != 1]
        if not absent:
            own = pa.schema([_plain(schema.field(name)) for name in dict.fromkeys(names)])
            try:
                together = pa.unify_schemas([together, own], promote_options="permissive")
            except pa.ArrowException as error:
                absent = [f"{one_line(error)} of other files; make all files alike"]
        problems += [f"{file.path}: {problem}" for problem in absent]
    if problems:
        raise DataError("\n".join(problems))
    return tuple(together.field(name) for name in names)


def _plain(field: Any) -> Any:
    """Return a field without its metadata; a dictionary becomes the type of its values."""
    return pa.field(field.name, plain_type(field.type))


def _absent(name: str, there: list[str]) -> str:
    if name in there:
        return f"there are several columns {name}, so that none can be kept"
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]}?" if near else f"columns there are: {', '.join(there[:20])}"
    return f"there is no column {name} to keep; {hint}"
