"""The sketches of a shard as Arrow files: the frequencies of ids without a row.

There is one file for each feature group and server that counts them, named as its file of rows, with the lines that
are not empty. Lines are in the order of keys, so that any number of servers and any capacity can load any set of files.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli.errors import CheckpointError
from persia_cli.kernels.table.frequency import WORDS, count_at_last_use, used_lines
from persia_cli.storage.hashed_files import HashingFile
from persia_cli.storage.locations import Location, writing_file
from persia_cli.store.checkpoints.manifest import FREQUENCIES, Manifest, kind_of, verify
from persia_cli.store.checkpoints.record_batches import arrow_numbers, file_name, record_batches
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard

Sketch = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
WORDS_OF_LINE, COUNTS = int(WORDS), 8 * (int(WORDS) - 1)
LINES_AT_ONCE = 2**16
LINES_KEY, TABLES_KEY = b"persia.lines", b"persia.tables"
"""Metadata keys: lines of the whole group, and the names of its tables as JSON."""
SCHEMA = pa.schema(
    [pa.field("line", pa.uint64()), pa.field("step", pa.int64()), pa.field("counts", pa.list_(pa.uint8(), COUNTS))]
)


def frequencies_of(words: NDArray[np.uint32], last_used: NDArray[np.uint32], epoch_bits: int) -> Bytes:
    """Return the frequencies of ids with a row, as of their last use; `words` are those of their rows."""
    counts = np.empty(words.size, np.uint8)
    count_at_last_use(words, last_used, epoch_bits, counts)
    return counts


@contextmanager
def frequency_file(
    store: RowStore, directory: Location, saved: list[SavedFile]
) -> Iterator[Callable[[int, Sketch], None]]:
    """Yield a function that writes lines of a store's sketch to its file: number of the first line, uint64[8 * lines].

    When the block ends, the file is on disk and appended to `saved`. Raise DiskError if it cannot be written, and
    remove it. A store without a sketch has no file.
    """
    group, first_line = store.group, store.partitions.start * store.group.sketch_lines
    name = file_name(group, store.partitions)
    if not group.sketch_lines:
        yield lambda _, __: None
        return
    of = {
        LINES_KEY: str(group.partitions * group.sketch_lines),
        TABLES_KEY: json.dumps([table.name for table in group.tables]),
    }
    schema, options = SCHEMA.with_metadata(of), pa.ipc.IpcWriteOptions(use_threads=False)

    def write(first: int, words: Sketch) -> None:
        lines = words.reshape(-1, WORDS_OF_LINE)
        for start in range(0, len(lines), LINES_AT_ONCE):
            part = lines[start : start + LINES_AT_ONCE]
            out.write_batch(_batch(part, first_line + first + start, group.epoch_bits, schema))

    with writing_file(directory / name) as sink, HashingFile(sink) as file:
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema, options=options) as out:
            yield write
        saved.append(SavedFile(directory.name, name, file.nbytes, file.finish()))


def _batch(lines: Sketch, first: int, epoch_bits: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the nonempty ones of the lines uint64[n, 8], the first of which has this number."""
    size = len(lines) + 1
    numbers, epochs = np.empty((2, size), np.uint64)
    counts = np.empty((size, WORDS_OF_LINE - 1), np.uint64)
    seen = used_lines(lines.reshape(-1), numbers, epochs, counts.reshape(-1))
    columns = [
        arrow_numbers(numbers[:seen] + np.uint64(first)),
        arrow_numbers((epochs[:seen] << np.uint64(epoch_bits)).astype(np.int64)),
        pa.FixedSizeListArray.from_arrays(arrow_numbers(counts[:seen].view(np.uint8).reshape(-1)), COUNTS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def load_frequencies(shard: Shard, folder: Location, manifest: Manifest) -> None:
    """Set the sketches of a shard to those of a checkpoint for their ranges of keys.

    If a sketch has other lines than the saved one, because of another capacity, each line gets the greater of the
    counts in its range. Raise CheckpointError for a file that is missing, damaged or altered.
    """
    counting = [store for store in shard.stores if store.index.sketch.size]
    for file in manifest.files:
        if kind_of(file) != FREQUENCIES or not counting:
            continue
        path = folder / file.folder / file.name
        verify(path, file)
        with record_batches(path) as batches:
            for batch in batches:
                batch.validate(full=True)
                _load(batch, counting, path)


def _load(batch: pa.RecordBatch, stores: Sequence[RowStore], path: Location) -> None:
    total = int(batch.schema.metadata[LINES_KEY])
    names = set(json.loads(batch.schema.metadata[TABLES_KEY]))
    lines, steps = batch.column("line").to_numpy(), batch.column("step").to_numpy()
    counts = batch.column("counts").flatten().to_numpy().reshape(-1, COUNTS)
    if lines.size and (int(lines.max()) >= total or steps.min() < 0):
        raise CheckpointError(f"{path} is damaged: it has lines beyond its {total:,}, or of negative steps")
    for store in stores:
        if names & {table.name for table in store.group.tables}:
            _merge(store, total, lines, steps, counts)


def _merge(store: RowStore, total: int, lines: NDArray[np.uint64], steps: NDArray[np.int64], counts: Bytes) -> None:
    """Add lines, of `total` that the group had, to the sketch of a store, with the greater of two counts."""
    group = store.group
    first, count = store.partitions.start * group.sketch_lines, len(store.partitions) * group.sketch_lines
    of = group.partitions * group.sketch_lines
    sketch = store.index.sketch.reshape(-1, WORDS_OF_LINE)
    store.mark_frequencies_loaded()
    if of == total:
        mine = (lines >= np.uint64(first)) & (lines < np.uint64(first + count))
        positions = lines[mine].astype(np.int64) - first
        sketch[positions, 0] = (steps[mine] >> group.epoch_bits).astype(np.uint64)
        sketch[positions, 1:] = counts[mine].view(np.uint64)
        return
    # Line i has the keys from i / total up to (i + 1) / total of all, which maps it to a range of the group's lines.
    # The products of numbers of lines can be beyond 64 bits.
    wide = lines.astype(object)
    begin = np.maximum((wide * of // total).astype(np.int64) - first, 0)
    end = np.minimum(-(-(wide + 1) * of // total).astype(np.int64) - first, count)
    times = np.maximum(end - begin, 0)
    which = np.repeat(np.arange(lines.size), times)
    positions = begin[which] + np.arange(which.size) - np.repeat(np.cumsum(times) - times, times)
    if not positions.size:
        return
    # Lines of a batch are near each other: the rest of a large sketch is not touched.
    sketch, positions = sketch[positions.min() : positions.max() + 1], positions - positions.min()
    epochs, before = (steps >> group.epoch_bits).astype(np.uint64)[which], sketch[:, 0].copy()
    np.maximum.at(sketch[:, 0], positions, epochs)
    there = sketch.view(np.uint8)[:, 8:]
    there[:] = _halved(there, sketch[:, 0] - before)
    np.maximum.at(there, positions, _halved(counts[which], sketch[positions, 0] - epochs))


def _halved(counts: Bytes, epochs: NDArray[np.uint64]) -> Bytes:
    """Return counts uint8 [n, m], each line halved as often as epochs have passed."""
    return counts >> np.minimum(epochs, np.uint64(8)).astype(np.uint8)[:, None]
