"""A row group of a Parquet file, and a reader of its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.control.splits import SplitName
from persia_cli.data.arrow_types import without_extensions
from persia_cli.data.hive import with_constants
from persia_cli.data.text_lines import TextLines
from persia_cli.errors import DataError, one_line


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its file, its number in the file, and its rows, numbered over all files."""

    path: str
    number: int
    first_row: int
    rows: int
    part: SplitName | None = None
    """The split of its file, where files make the split."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns named by the file's folders, each an Arrow scalar."""
    source: str | None = None
    """The text file that the rows were converted from."""
    start: int = 0
    """Its first row in that file."""
    lines: TextLines | None = None
    """Finds the lines of that file."""

    def __str__(self) -> str:
        if self.source is not None:
            return f"{self.source}, in its rows from {self.start} on"
        return f"{self.path}, row group {self.number}"

    def place_of(self, row: int) -> str:
        """Return the position of a row in words: for a text file the line, found by reading the file again."""
        line = None if self.lines is None else self.lines.line_of(self.start + row)
        return f"row {row}" if line is None else f"line {line:,}"


class RowGroupReader:
    """Reads columns of row groups and keeps the last file open; for one thread at a time."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._path: str | None = None
        self._parquet: Any = None

    def __enter__(self) -> "RowGroupReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, group: RowGroup, columns: list[str]) -> Any:
        """Return a pyarrow table of the columns; raises DataError if the file is damaged, changed or gone."""
        try:
            if self._path != group.path:
                self.close()
                self._parquet = _opened(self._filesystem.open_input_file(group.path), group.number)
                self._path = group.path
            own = [name for name in columns if name not in group.constants]
            table = self._parquet.read_row_group(group.number, columns=own, use_threads=False).select(own)
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DataError(f"{group}: cannot be read ({one_line(error)}); prepare the file again") from error
        if table.num_rows != group.rows:
            raise DataError(
                f"{group}: it has {table.num_rows} rows, but the footer said {group.rows}; prepare the file again"
            )
        table = without_extensions(table)
        wanted = {name: group.constants[name] for name in columns if name in group.constants}
        return with_constants(table, wanted).select(columns) if wanted else table

    def close(self) -> None:
        """Close the file that is open."""
        if self._parquet is not None:
            self._parquet.close(force=True)
        self._parquet = self._path = None


def _opened(source: Any, number: int) -> Any:
    """Open a file; text with few distinct values per row group is read as a dictionary, so that each is hashed once.

    Plain text takes 4 bytes and its own length per value; for text that hardly repeats, a dictionary costs more.
    """
    metadata = pq.read_metadata(source)
    group = metadata.row_group(number)
    repeated = []
    for place in range(group.num_columns):
        column, kind = group.column(place), metadata.schema.column(place)
        is_text = kind.logical_type.type == "STRING" and kind.max_repetition_level == 0
        if is_text and column.total_uncompressed_size < 4 * group.num_rows:
            repeated.append(column.path_in_schema)
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=repeated, pre_buffer=True)
