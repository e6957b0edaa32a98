"""The record batches of a file of rows, and their columns as numpy arrays and back."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError
from persia_cli.storage.hashed_files import HashedSource, HashingFile
from persia_cli.storage.locations import Location, reading_stream, writing_file
from persia_cli.store.checkpoints.manifest import require_digest
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.store.layout import GroupSpec

FREQUENCY = "frequency"
"""Column with the frequency of an id at its last use, of tables that evict by frequency."""
FILE_MARK = b"ARROW1\0\0"
"""The bytes with which an Arrow file begins."""


@contextmanager
def understanding_rows(path: Location) -> Iterator[None]:
    """Raise CheckpointError if the block cannot read the file of rows as such."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a file of a Persia checkpoint: {error}") from error


@contextmanager
def record_batches(path: Location) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the record batches of a file of rows; raises CheckpointError if the block cannot read them as such."""
    with (
        understanding_rows(path),
        pa.OSFile(str(path)) if isinstance(path, Path) else path.open_file() as source,
    ):
        reader = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(use_threads=False))
        yield map(reader.get_batch, range(reader.num_record_batches))


@contextmanager
def hashed_batches(
    path: Location, file: SavedFile, on_bytes: Callable[[int], None]
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the record batches of a file of rows, and compare its content with its checksum after the block.

    Call `on_bytes` with the size of each part read. Raise CheckpointError as `record_batches` does, and if the content
    is not the saved one: then the batches are not valid.
    """
    # Each byte is read once, in order: between its marks, an Arrow file is an Arrow stream, then comes an index of
    # batches for readers of only some.
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


def arrow_numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers [n] as an Arrow array; contiguous ones are not copied."""
    content = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(content.dtype), content.size, [None, pa.py_buffer(content)])


def arrow_texts(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array."""
    encoded = [text.encode() for text in texts]
    ends = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(encoded) + 1)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def floats_of(size: int) -> pa.DataType:
    """Return the type of a column of vectors."""
    return pa.list_(pa.float32(), size)


def row_schema(vectors: Mapping[str, int], has_frequency: bool) -> pa.Schema:
    """Return the columns of rows; `vectors` are those of their vectors, with the sizes."""
    fields = [
        pa.field("table", pa.dictionary(pa.int32(), pa.string())),
        pa.field("id", pa.uint64()),
        pa.field("last_used", pa.int64()),
    ]
    if has_frequency:
        fields.append(pa.field(FREQUENCY, pa.uint8()))
    return pa.schema(fields + [pa.field(name, floats_of(size)) for name, size in vectors.items()])


def table_column(tables: Mapping[str, int], numbers: NDArray[Any]) -> pa.DictionaryArray:
    """Return the column of tables, given the number of each row's table; `tables` are the numbers by name."""
    positions = np.zeros(max(tables.values()) + 1, np.int32)
    positions[list(tables.values())] = np.arange(len(tables))
    return pa.DictionaryArray.from_arrays(arrow_numbers(positions.take(numbers)), arrow_texts(list(tables)), safe=False)


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an Arrow array without a copy; raises ValueError if some are missing."""
    if array.null_count:
        raise ValueError(f"{array.null_count} of {len(array)} numbers are missing")
    content, dtype = array.buffers()[1], np.dtype(array.type.to_pandas_dtype())
    if content is None:
        return np.empty(0, dtype)
    return np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)


PARTITIONS_KEY = b"persia.partitions"
"""Metadata key for the group's number of partitions when it was saved; only for human readers."""


def file_name(group: GroupSpec, partitions: range) -> str:
    """Return the name of the file of a group's rows in the partitions that a server owns."""
    return f"group-{group.number}-partitions-{partitions.start:04d}-{partitions.stop - 1:04d}.arrow"


def write_rows(
    group: GroupSpec,
    partitions: range,
    directory: Location,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    on_rows: Callable[[int], None],
) -> SavedFile:
    """Write record batches to the file of some partitions; raise DiskError, and remove the file then."""
    name, rows = file_name(group, partitions), Counter[str]()
    schema = schema.with_metadata({PARTITIONS_KEY: str(group.partitions)})
    with writing_file(directory / name) as sink, HashingFile(sink) as file:
        out = pa.PythonFile(file, mode="w")
        with pa.ipc.new_file(out, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows.update(rows_by_table(batch))
                on_rows(batch.num_rows)
        digest = file.finish()
    saved = SavedRows(group.number, group.partitions, partitions.start, partitions.stop, dict(rows))
    return SavedFile(directory.name, name, file.nbytes, digest, saved)
