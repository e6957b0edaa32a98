"""The writing of a file of rows, with its checksum and the number of its rows."""

from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa

from persia_cli.storage.hashing_file import HashingFile
from persia_cli.storage.places import Place, writing_file
from persia_cli.store.checkpoints.record_batches import rows_by_table
from persia_cli.store.row_store import RowStore
from persia_cli.wire.figures import SavedFile, SavedRows

PARTITIONS_KEY = b"persia.partitions"
"""Metadata key for the group's number of partitions when it was saved; only people read it."""


def file_name(store: RowStore) -> str:
    """Return the name of the file of a store: its group, and the partitions that the server owns."""
    first, last = store.partitions.start, store.partitions.stop - 1
    return f"group-{store.group.number}-partitions-{first:04d}-{last:04d}.arrow"


def write_rows(
    store: RowStore,
    directory: Place,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    on_rows: Callable[[int], None],
    since: int | None = None,
) -> SavedFile:
    """Write record batches to the file of a store; raises DiskError, and removes the file then."""
    group, partitions = store.group, store.partitions
    name = file_name(store)
    path, rows = directory / name, Counter[str]()
    schema = schema.with_metadata({PARTITIONS_KEY: str(group.partitions)})
    with writing_file(path) as sink, HashingFile(sink) as file:
        out = pa.PythonFile(file, mode="w")
        with pa.ipc.new_file(out, schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows.update(rows_by_table(batch))
                on_rows(batch.num_rows)
        digest = file.finish()
    saved = SavedRows(group.number, group.partitions, partitions.start, partitions.stop, dict(rows), since)
    return SavedFile(directory.name, name, file.nbytes, digest, saved)
