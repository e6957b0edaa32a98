"""Sorting of rows too large for memory by a key: they are spread over files, each of which fits in memory."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from persia_cli.errors import DataError
from persia_cli.kernels.rows.splitmix import mix64

_WAITING_ROWS = 1 << 14
"""Rows of a bucket that are written together."""


def spread(tables: Iterable[Any], key: str, folder: Path, number: int) -> None:
    """Write all rows to `number` files in a new folder.

    Rows with the same key, an integer, go to the same file and keep their order. The tables have one schema. Raises
    DataError if there are no tables.
    """
    folder.mkdir(parents=True)
    buckets: list[_Bucket] = []
    with ExitStack() as stack:
        for table in tables:
            if not buckets:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                files = [str(_file(folder, bucket)) for bucket in range(number)]
                writers = [pa.ipc.new_stream(file, table.schema, options=options) for file in files]
                buckets = [_Bucket(stack.enter_context(writer)) for writer in writers]
            bucket_number = (mix64(table.column(key).to_numpy().astype(np.uint64)) % np.uint64(number)).astype(np.int64)
            rows = table.take(np.argsort(bucket_number, kind="stable"))
            ends = np.cumsum(np.bincount(bucket_number, minlength=number)).tolist()
            for bucket, start, end in zip(buckets, [0, *ends[:-1]], ends, strict=True):
                bucket.add(rows.slice(start, end - start))
        for bucket in buckets:
            bucket.flush()
    if not buckets:
        raise DataError(f"the source has no rows of {folder.name}")


def read_bucket(folder: Path, number: int) -> Any:
    """Return all rows of a file as one Arrow table."""
    with pa.memory_map(str(_file(folder, number))) as file, pa.ipc.open_stream(file) as stream:
        return stream.read_all().combine_chunks()


class _Bucket:
    """Rows that wait to be written to one file."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, rows: Any) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= _WAITING_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._rows = [], 0


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}.arrow"
