"""The record batches of a file of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from persia_cli.errors import CheckpointError
from persia_cli.storage.places import Place


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


def rows_by_table(batch: pa.RecordBatch) -> dict[str, int]:
    """Return the number of rows of each table that has any in a record batch."""
    column = batch.column("table")
    counts = np.bincount(column.indices.to_numpy(), minlength=len(column.dictionary)).tolist()
    return {name: count for name, count in zip(column.dictionary.to_pylist(), counts, strict=True) if count}
