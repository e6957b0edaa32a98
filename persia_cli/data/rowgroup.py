"""A row group of a Parquet file, and how its columns are read."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persia_cli.control.splits import SplitName
from persia_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its file, its number there, and its rows, numbered over all files."""

    path: str
    number: int
    first_row: int
    rows: int
    part: SplitName | None = None
    """The split its file belongs to, where files make the split."""

    def __str__(self) -> str:
        return f"{self.path}, row group {self.number}"


class RowGroupReader:
    """Reads columns of row groups and keeps the last file open; one thread at a time."""

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
                self._parquet = pq.ParquetFile(self._filesystem.open_input_file(group.path), pre_buffer=True)
                self._path = group.path
            table = self._parquet.read_row_group(group.number, columns=columns, use_threads=False).select(columns)
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DataError(f"{group}: cannot be read ({one_line(error)}); prepare the file again") from error
        if table.num_rows != group.rows:
            raise DataError(
                f"{group}: {table.num_rows} rows where its footer said {group.rows}; prepare the file again"
            )
        return table

    def close(self) -> None:
        """Close the file that is open."""
        if self._parquet is not None:
            self._parquet.close(force=True)
        self._parquet = self._path = None


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks and without a full stop."""
    return " ".join(str(error).split()).removesuffix(".")
