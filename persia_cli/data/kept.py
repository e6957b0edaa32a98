"""Columns of a data set that are handed on as they are, such as the ids of rows."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.data.rowgroup import RowGroup, RowGroupReader, one_line
from persia_cli.data.scan import ParquetScan
from persia_cli.errors import DataError


class KeptColumns:
    """Reads columns of any type in the order of files and rows; holds those of one row group. Used by one thread."""

    def __init__(self, found: ParquetScan, names: Sequence[str]) -> None:
        """Look at the columns in every file; raises DataError with a line for each that is not there.

        A column has the type that it has in the first file; of a dictionary that is the type of its values.
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
                f"{group}: a column to keep has another type than in the first file ({one_line(error)}); make all "
                "files alike"
            ) from error


def _fields(found: ParquetScan, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the columns' fields in the first file; raises DataError where a file lacks one."""
    fields: dict[str, Any] = {}
    problems = []
    for file in found.files if names else ():
        with found.filesystem.open_input_file(file.path) as source:
            schema = pq.read_schema(source)
        for name in names:
            if schema.names.count(name) != 1:
                problems.append(f"{file.path}: {_absent(name, schema.names)}")
            elif name not in fields:
                kind = schema.field(name).type
                fields[name] = pa.field(name, kind.value_type if pa.types.is_dictionary(kind) else kind)
    if problems:
        raise DataError("\n".join(problems))
    return tuple(fields[name] for name in names)


def _absent(name: str, there: list[str]) -> str:
    if name in there:
        return f"there are several columns {name}, so that none can be kept"
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]}?" if near else f"columns there are: {', '.join(there[:20])}"
    return f"there is no column {name} to keep; {hint}"
