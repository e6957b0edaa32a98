"""The record batches of a file of rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from persia_cli.errors import CheckpointError
from persia_cli.storage.hashed_source import HashedSource
from persia_cli.storage.places import Place, reading_stream
from persia_cli.store.checkpoints.arrow_arrays import numbers_of
from persia_cli.store.checkpoints.manifest import require_digest
from persia_cli.wire.figures import SavedFile

FILE_MARK = b"ARROW1\0\0"
"""The bytes with which an Arrow file begins."""


@contextmanager
def understanding_rows(path: Place) -> Iterator[None]:
    """Raise CheckpointError if the block cannot read the file of rows as such."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a file of a Persia checkpoint: {error}") from error


@contextmanager
def record_batches(path: Place) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the record batches of a file of rows; raises CheckpointError if the block cannot read them as such."""
    with (
        understanding_rows(path),
        pa.OSFile(str(path)) if isinstance(path, Path) else path.open_file() as source,
    ):
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
        yield map(reader.get_batch, range(reader.num_record_batches))


@contextmanager
def hashed_batches(path: Place, file: SavedFile, on_bytes: Callable[[int], None]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the record batches of a file of rows, and compare its content with its checksum after the block.

    Each byte is read once, in order: between its marks, an Arrow file is an Arrow stream, then comes a list of batches
    for who wants to read only some. Calls `on_bytes` with the size of each part read. Raises CheckpointError as
    `record_batches` does, and if the content is not what was saved: then the batches are worth nothing.
    """
    with (
        understanding_rows(path),
        reading_stream(path) as stream,
        HashedSource(stream, on_bytes) as source,
    ):
        source.read(len(FILE_MARK))
        yield iter(pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)))
        require_digest(path, file, source.finish())


def rows_by_table(batch: pa.RecordBatch) -> dict[str, int]:
    """Return the number of rows of each table that has any in a record batch."""
    column = batch.column("table")
    counts = np.bincount(numbers_of(column.indices), minlength=len(column.dictionary)).tolist()
    return {name: count for name, count in zip(column.dictionary.to_pylist(), counts, strict=True) if count}
