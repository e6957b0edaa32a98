"""Row groups of Parquet files: the footers that list them, a reader of their columns, and a writer.

Folders may name columns, as in `day=2024-01-01/part-0.parquet` (hive partitions)."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.control.position import SplitName
from persia_cli.data.read.arrow_types import without_extensions
from persia_cli.data.read.files import DataFile
from persia_cli.data.read.unchanged import require_version, version_of
from persia_cli.errors import DataError, one_line
from persia_cli.storage.remote import ask

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder value that stands for null."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def folder_values(path: str) -> dict[str, str | None]:
    """Return the columns and values named by the folders of a path, decoded as in URLs; None for a null."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            values[unquote(name)] = None if value == NULL else unquote(value)
    return values


class HiveColumns:
    """The columns named by a data set's folders: int64 if every value is an integer, else strings."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._values = {path: folder_values(path) for path in paths}
        texts: dict[str, set[str]] = {}
        for values in self._values.values():
            for name, value in values.items():
                texts.setdefault(name, set()).update([] if value is None else [value])
        self._types = {
            name: pa.int64() if all(map(_INTEGER.fullmatch, values_there)) and values_there else pa.string()
            for name, values_there in texts.items()
        }

    def schema(self, path: str, file_schema: Any) -> Any:
        """Return a file's Arrow schema with the columns of its folders that the file itself does not have."""
        names = [name for name in self._values[path] if name not in file_schema.names]
        return pa.schema([*file_schema, *(pa.field(name, self._types[name]) for name in names)])

    def constants(self, path: str, file_schema: Any) -> dict[str, Any]:
        """Return the columns of a file's folders that the file itself does not have, each as an Arrow scalar."""
        return {
            name: pa.scalar(
                value if value is None or self._types[name] == pa.string() else int(value), self._types[name]
            )
            for name, value in self._values[path].items()
            if name not in file_schema.names
        }


def with_constants(table: Any, constants: Mapping[str, Any]) -> Any:
    """Return an Arrow table or batch with added constant columns, encoded as dictionaries of one value."""
    for name, value in constants.items():
        zeros = pa.repeat(pa.scalar(0, pa.int8()), table.num_rows)
        if not value.is_valid:
            zeros = pa.nulls(table.num_rows, pa.int8())
        table = table.append_column(name, pa.DictionaryArray.from_arrays(zeros, pa.array([value.as_py()], value.type)))
    return table


_BUFFER_BYTES = 1 << 18
"""Bytes of a column that a stream reads at a time."""


class Footer(NamedTuple):
    """The footer of a Parquet file."""

    metadata: Any
    schema: Any
    """The Arrow schema."""
    version: str
    """The file's version before it was read."""


def read_footer(filesystem: Any, file: DataFile, uri: str | None) -> Footer:
    """Return a file's footer; a store on other machines, named by `uri`, has a deadline.

    Raises DataError for a store that does not answer or refuses, OSError or pyarrow.ArrowException for a file that is
    not Parquet.
    """

    def read() -> Footer:
        with filesystem.open_input_file(file.path) as source:
            version = version_of(filesystem, file.path, source)
            with pq.ParquetFile(source) as parquet:
                return Footer(parquet.metadata, parquet.schema_arrow, version)

    return read() if uri is None else ask(f"{uri.partition('://')[0]}://{file.path}", read)


def statistics_of(row_group: Any, names: Container[str]) -> dict[str, Any]:
    """Return the statistics of these columns in a row group's metadata, None where it has none."""
    columns = map(row_group.column, range(row_group.num_columns))
    return {column.path_in_schema: column.statistics for column in columns if column.path_in_schema in names}


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
    line_of: Callable[[int], int | None] | None = None
    """Finds the line of that file on which one of its rows begins."""
    nbytes: int = 0
    """Bytes of all its columns, before compression."""
    list_bytes: int = 0
    """Bytes of the ids in its lists, decoded."""
    version: str = ""
    """The version of its file, if that is compared."""
    content: tuple[str, int] = ("", 0)
    """The identity of the content of its file, and the number of earlier files of the same content."""

    def __str__(self) -> str:
        if self.source is not None:
            return self.source
        return f"{self.path}, row group {self.number}"

    def place_of(self, row: int) -> str:
        """Return the position of a row, for people: for a text file the line, found by reading the file again."""
        line = None if self.line_of is None else self.line_of(self.start + row)
        return f"row {row}" if line is None else f"line {line:,}"


class _OpenFile:
    """A file that is read, which must be of the version that its row groups were planned with."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._source: Any = None
        self._parquet: Any = None

    @contextmanager
    def _reading(self, group: RowGroup) -> Iterator[None]:
        """Raise DataError if a row group cannot be read in the block, or if its file is another one afterwards."""
        failed = None
        try:
            yield
        except (OSError, KeyError, IndexError, pa.ArrowException) as error:
            failed = error
        if self._source is not None:
            require_version(self._filesystem, group.path, self._source, group.version)
        if failed is not None:
            raise DataError(f"{group}: cannot be read ({one_line(failed)}); prepare the file again") from failed

    def _open(self, group: RowGroup, buffer_bytes: int = 0) -> None:
        self._source = self._filesystem.open_input_file(group.path)
        self._parquet = _opened(self._source, group.number, buffer_bytes)

    def close(self) -> None:
        """Close the file that is open."""
        if self._parquet is not None:
            self._parquet.close(force=True)
        self._parquet = self._source = None


class RowGroupReader(_OpenFile):
    """Reads columns of row groups and keeps the last file open; for one thread at a time."""

    def __init__(self, filesystem: Any) -> None:
        super().__init__(filesystem)
        self._path: str | None = None

    def __enter__(self) -> "RowGroupReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, group: RowGroup, columns: list[str]) -> Any:
        """Return a pyarrow table of the columns; raises DataError if the file is damaged, changed or gone."""
        in_file = [name for name in columns if name not in group.constants]
        with self._reading(group):
            if self._path != group.path:
                self.close()
                self._open(group)
                self._path = group.path
            _check_rows(group, self._parquet.metadata)
            table = self._parquet.read_row_group(group.number, columns=in_file, use_threads=False).select(in_file)
        return _completed(table, group, columns)

    def close(self) -> None:
        """Close the file that is open."""
        super().close()
        self._path = None


class GroupedRows(NamedTuple):
    """Row groups on a file system."""

    filesystem: Any
    groups: Sequence[RowGroup]

    def read(self, columns: Iterable[str]) -> Iterator[tuple[RowGroup, Any]]:
        """Yield each row group with a table of these columns; raises DataError as `RowGroupReader.read` does."""
        with RowGroupReader(self.filesystem) as reader:
            for group in self.groups:
                yield group, reader.read(group, list(dict.fromkeys(columns)))


class RowGroupStream(_OpenFile):
    """Reads columns of one row group from front to back, in portions; holds a few pages of each column."""

    def __init__(self, filesystem: Any, group: RowGroup, columns: list[str], rows: int) -> None:
        """Open the file, to read at most `rows` rows at a time; raises DataError as `read` does."""
        super().__init__(filesystem)
        self._group, self._columns = group, columns
        self._own = [name for name in columns if name not in group.constants]
        with self._reading(group):
            self._open(group, _BUFFER_BYTES)
            _check_rows(group, self._parquet.metadata)
            self._batches = self._parquet.iter_batches(rows, [group.number], self._own, use_threads=False)

    def read(self) -> Any:
        """Return the next rows as a pyarrow table; raises DataError if the file is damaged, changed or at its end."""
        with self._reading(self._group):
            batch = next(self._batches, None)
            if batch is None:
                raise OSError("it has fewer rows than its footer says")
            table = pa.Table.from_batches([batch]).select(self._own)
        return _completed(table, self._group, self._columns)


def _check_rows(group: RowGroup, metadata: Any) -> None:
    """Raise OSError if the row group has another number of rows than when its file was planned with."""
    rows = metadata.row_group(group.number).num_rows
    if rows != group.rows:
        raise OSError(f"it has {rows} rows, and had {group.rows} at the start")


def _completed(table: Any, group: RowGroup, columns: list[str]) -> Any:
    """Return the columns asked for: those of the file, and those that its folders name."""
    table = without_extensions(table)
    wanted = {name: group.constants[name] for name in columns if name in group.constants}
    return with_constants(table, wanted).select(columns) if wanted else table


def _opened(source: Any, number: int, buffer_bytes: int = 0) -> Any:
    """Open a file; text with few distinct values per row group is read as a dictionary, so that each is hashed once.

    Plain text takes 4 bytes and its own length per value; for text that hardly repeats, a dictionary costs more.
    With `buffer_bytes`, columns are read through buffers of this size instead of all at once.
    """
    metadata = pq.read_metadata(source)
    group = metadata.row_group(number)
    repeated = []
    for place in range(group.num_columns):
        column, kind = group.column(place), metadata.schema.column(place)
        is_text = kind.logical_type.type == "STRING" and kind.max_repetition_level == 0
        if is_text and column.total_uncompressed_size < 4 * group.num_rows:
            repeated.append(column.path_in_schema)
    whole = buffer_bytes == 0
    return pq.ParquetFile(
        source, metadata=metadata, read_dictionary=repeated, pre_buffer=whole, buffer_size=buffer_bytes
    )


class GroupedWriter:
    """Writes tables to one Parquet file (zstd, statistics of every column) in row groups of equal size.

    A context manager; the file exists once a table is written.
    """

    def __init__(self, path: Path, row_group_rows: int) -> None:
        self.rows = 0
        self.metadata: dict[bytes, bytes] = {}
        """Keys and values for the file's footer."""
        self._path = path
        self._row_group_rows = row_group_rows
        self._waiting: list[Any] = []
        self._writer: Any = None

    def __enter__(self) -> "GroupedWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._writer is None:
            return
        if kind is None:
            if rows := pa.concat_tables(self._waiting):
                self._writer.write_table(rows, row_group_size=self._row_group_rows)
            self._writer.add_key_value_metadata(self.metadata)
        self._writer.close()

    def write(self, table: Any) -> None:
        """Add rows; full row groups are written at once, the remaining rows wait."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
        self.rows += table.num_rows
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= self._row_group_rows:
            rows = pa.concat_tables(self._waiting)
            whole = rows.num_rows // self._row_group_rows * self._row_group_rows
            self._writer.write_table(rows.slice(0, whole), row_group_size=self._row_group_rows)
            self._waiting = [rows.slice(whole)]
