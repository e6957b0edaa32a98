"""The rows of files as a table of DuckDB, for queries in bounded memory, which end on Ctrl-C."""

import glob
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
from fsspec import AbstractFileSystem
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from persia_cli.data.inspect.files import SourceFiles
from persia_cli.data.read.files import DataFile
from persia_cli.errors import DataError, one_line

MEMORY = "512MiB"
"""Memory of queries; what does not fit goes to a temporary folder."""
MOST_THREADS = 8
SAMPLED_ROWS = 1 << 16
"""Rows in the table `sample`, approximately; all rows if there are fewer."""

ROW = "(first + file_row_number)"
"""SQL for the number of a row, counted over all files."""
_STORE = "persia-store"
_BLOCK_BYTES, _BLOCKS = 1 << 20, 64
"""Bytes that are read at once from a store, and the blocks that are kept of each file."""
_MACROS = """
CREATE TEMP MACRO finite(v) AS CASE WHEN isfinite(v::DOUBLE) THEN v::DOUBLE END;
"""


class Queries:
    """Queries about the rows of files, each with `file`, the number of its file; close after use."""

    def __init__(self, source: SourceFiles) -> None:
        self.source = source
        self.total = sum(source.rows)
        self.whole = "data" if self.total > SAMPLED_ROWS else "sample"
        """The table of all rows that is fastest to read: a sample of few rows has them all."""
        self._folder = TemporaryDirectory(prefix="persia-inspect-")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="persia-query")
        self._database = duckdb.connect()
        settings = {
            "memory_limit": MEMORY,
            "temp_directory": self._folder.name.replace("'", "''"),
            "threads": min(MOST_THREADS, len(os.sched_getaffinity(0))),
            "preserve_insertion_order": False,
            "parquet_metadata_cache": True,
            "disable_parquet_prefetching": True,  # which would read whole row groups into memory
            "autoinstall_known_extensions": False,  # nothing is downloaded
            "autoload_known_extensions": False,
        }
        self._database.execute("".join(f"SET {name} = '{value}';" for name, value in settings.items()) + _MACROS)
        self._is_local = isinstance(source.filesystem, LocalFileSystem)
        if not self._is_local:
            self._database.register_filesystem(_Store(source.filesystem, source.files))
        self.split = "0"
        """SQL of `tables` for 0 where a row trains, 1 where it evaluates, and else NULL."""
        self._columns: dict[str, str] = {}
        self.tables = self._tables()
        """SQL of all rows, to stand after FROM."""

    def close(self) -> None:
        """Remove all that queries have left."""
        self._thread.shutdown()
        if not self._is_local:
            self._database.unregister_filesystem(_STORE)
        self._database.close()
        self._folder.cleanup()

    def column(self, name: str) -> str:
        """Return SQL for a column of `tables`; raises DataError if there is none."""
        if name not in self._columns:
            raise DataError(f"{self.source.path}: there is no column {name}; correct the split in dataset.yaml")
        return self._columns[name]

    def select(self, columns: Mapping[str, str], sampled: Sequence[str]) -> None:
        """Make the view `data` of columns, from the names that queries are to give them to those of the files.

        Rows of no split are left out. The table `sample` has the rows of `data` that a hash of their number picks, the
        same each time, with the columns, or SQL of them, that `sampled` lists.
        """
        named = ", ".join(f"{self.column(name)} AS {short}" for short, name in columns.items())
        self.run(
            "CREATE OR REPLACE TEMP VIEW data AS SELECT * FROM "
            f"(SELECT {self.split} AS split, {ROW} AS row, {named} FROM {self.tables}) WHERE split IS NOT NULL"
        )
        most = min(2**64 - 1, 2**64 * SAMPLED_ROWS // self.total)
        self.run(
            f"CREATE OR REPLACE TEMP TABLE sample AS SELECT {', '.join(['split', *sampled])} FROM data "
            f"WHERE hash(row) <= {most}::UBIGINT"
        )

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; raises DataError for a file that cannot be read."""
        rows: list[tuple[Any, ...]] = self._run(lambda: self._database.execute(sql).fetchall())
        return rows

    def arrays(self, sql: str) -> dict[str, NDArray[Any]]:
        """Run a query whose answer has no nulls, and return its columns by name."""
        columns: dict[str, NDArray[Any]] = self._run(lambda: self._database.execute(sql).fetchnumpy())
        return columns

    def _run(self, query: Callable[[], Any]) -> Any:
        future = self._thread.submit(query)
        try:
            return future.result()
        except duckdb.Error as error:
            raise self._failure(error) from error
        finally:
            if not future.done():
                self._database.interrupt()

    def _tables(self) -> str:
        """Return SQL of all rows; the names of columns are numbers, for DuckDB tells no `d` from `D`.

        The table `files` has the number of each file's first row, and the columns that folders name.
        """
        source = self.source
        paths = [
            glob.escape(file.path) if self._is_local else f"{_STORE}://{number}"
            for number, file in enumerate(source.files)
        ]
        self._database.execute("SET VARIABLE paths = ?", [paths])
        files: dict[str, Any] = {"file": range(len(paths)), "first": list(accumulate(source.rows, initial=0))[:-1]}
        in_files = []
        for number, field in enumerate(source.schema):
            values = [constants.get(field.name) for constants in source.constants]
            places = []
            if None in values:
                in_files.append(f"c{number}")
                places.append(f"held.c{number}")
            if values != [None] * len(values):
                files[f"c{number}"] = pa.array([value and value.as_py() for value in values], field.type)
                places.append(f"files.c{number}")
            self._columns[field.name] = f"coalesce({', '.join(places)})"
        self._database.register("files", pa.table(files))
        is_mixed = len(in_files) + len(files) - 2 > len(source.schema)
        return (
            f"read_parquet(getvariable('paths'), hive_partitioning = false, union_by_name = {is_mixed}) "
            f"AS held({', '.join(in_files)}) JOIN files ON file = file_index"
        )

    def _failure(self, error: duckdb.Error) -> DataError:
        """Return the error of a query with the name of the first file that cannot be read whole."""
        if isinstance(error, duckdb.OutOfMemoryException):
            return DataError(f"{self.source.path}: the queries need more than {MEMORY} ({one_line(error)})")
        for number, file in enumerate(self.source.files):
            try:
                self._database.execute(
                    f"SELECT bit_xor(hash(COLUMNS(*))) FROM read_parquet(getvariable('paths')[{number + 1}])"
                ).fetchall()
            except duckdb.Error as cause:
                return DataError(f"{file.path}: cannot be read ({one_line(cause)}); prepare the file again")
        return DataError(f"{self.source.path}: cannot be read ({one_line(error)})")


class _Store(AbstractFileSystem):  # type: ignore[misc]
    """The files of any file system of pyarrow for DuckDB, named by their numbers."""

    protocol = _STORE
    cachable = False

    def __init__(self, filesystem: Any, files: Sequence[DataFile]) -> None:
        super().__init__()
        self._filesystem, self._files = filesystem, files

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._file(path).nbytes, "type": "file"}

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(0, UTC)

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_StoreFile":
        return _StoreFile(self._filesystem.open_input_file(self._file(path).path))

    def _file(self, path: str) -> DataFile:
        return self._files[int(path.rpartition("/")[2])]


class _StoreFile:
    """A file that is read in blocks, by several threads at once: each has its own position.

    DuckDB seeks and reads in two calls, between which another thread may seek.
    """

    def __init__(self, file: Any) -> None:
        self._file, self._place = file, threading.local()
        self._block = lru_cache(_BLOCKS)(lambda number: file.read_at(_BLOCK_BYTES, number * _BLOCK_BYTES))

    def seek(self, position: int, whence: int = os.SEEK_SET) -> None:
        assert whence == os.SEEK_SET
        self._place.at = position

    def read(self, nbytes: int) -> bytes:
        position = getattr(self._place, "at", 0)
        block, start = divmod(position, _BLOCK_BYTES)
        blocks = range(block, (position + nbytes - 1) // _BLOCK_BYTES + 1)
        content = b"".join(map(self._block, blocks))[start : start + nbytes]
        self._place.at = position + len(content)
        return content

    def close(self) -> None:
        self._file.close()
