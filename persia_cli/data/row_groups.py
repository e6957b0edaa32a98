"""Tables to a Parquet file in row groups of equal size."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class GroupedWriter:
    """Writes tables to one Parquet file (zstd, statistics of every column) in row groups of equal size.

    A context manager; the file exists once a row is written.
    """

    def __init__(self, path: Path, row_group_rows: int) -> None:
        self.rows = 0
        self._path = path
        self._row_group_rows = row_group_rows
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._writer: Any = None

    def __enter__(self) -> "GroupedWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._waiting_rows:
            self._write(pa.concat_tables(self._waiting))
        if self._writer is not None:
            self._writer.close()

    def write(self, table: Any) -> None:
        """Add rows; full row groups are written at once, the remaining rows wait."""
        self.rows += table.num_rows
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        if self._waiting_rows >= self._row_group_rows:
            rows = pa.concat_tables(self._waiting)
            whole = rows.num_rows // self._row_group_rows * self._row_group_rows
            self._write(rows.slice(0, whole))
            self._waiting, self._waiting_rows = [rows.slice(whole)], rows.num_rows - whole

    def _write(self, rows: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, rows.schema, compression="zstd", write_statistics=True)
        self._writer.write_table(rows, row_group_size=self._row_group_rows)
