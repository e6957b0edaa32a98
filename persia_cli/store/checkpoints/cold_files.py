"""The rows that were not in memory, as a checkpoint has them: segments of a cold log, and a list of them.

Of two checkpoints in a row, one has the log's own files, hard-linked, and the other one has copies, which the next but
one links again. So one damaged file leaves a checkpoint without it. On another disk, all are copies.

Some records of a segment are not valid any more: their rows returned to memory, or were moved to later segments. So the
list, an Arrow file named after the file of rows of the same partitions, has a bit for each record: 1 for a live one.
Its metadata describes records.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh128

from persia_cli import disk
from persia_cli.errors import CheckpointError, DiskFaultError
from persia_cli.kernels.rows import hashing
from persia_cli.kernels.table import cold
from persia_cli.storage.hashed_files import HashedSource, HashingFile
from persia_cli.storage.locations import Location, reading_stream, writing_file
from persia_cli.store.checkpoints.frequency_files import frequencies_of
from persia_cli.store.checkpoints.manifest import require_digest, segment_name
from persia_cli.store.checkpoints.record_batches import (
    PARTITIONS_KEY,
    arrow_numbers,
    file_name,
    hashed_batches,
    record_batches,
    row_schema,
    table_column,
)
from persia_cli.store.checkpoints.saved import Positive, Record, SavedFile, SavedRows
from persia_cli.store.cold.cold_rows import CutSegment
from persia_cli.store.cold.segments import Content, LogSegment
from persia_cli.store.layout import Storage, table_salt
from persia_cli.store.row_store import RowStore, vectors_of

RECORDS_KEY = b"persia.records"
"""Metadata key of the description of records, as JSON."""
SCHEMA = pa.schema([pa.field("segment", pa.string()), pa.field("live", pa.binary())])
PIECE_BYTES = 2**22
"""Approximate size of the blocks that are in memory at a time."""
HEAD_LONGS = int(cold.BLOCK_HEAD) // 2
OnBytes = Callable[[int], None]
Records = NDArray[np.uint64]
"""uint64[n, words of a record / 2]."""


class RecordFormat(Record, frozen=True, forbid_unknown_fields=True):
    """The records of a list's segments."""

    tables: dict[str, int]
    """The number of each table of the group in records, in the order of rows with equal keys."""
    vectors: dict[str, Positive]
    """Columns of the embedding and of each optimizer state."""
    dtype: Storage
    epoch_bits: int | None
    """As in `GroupSpec`; None if the group does not count uses."""
    record_bytes: Positive
    block_bytes: Positive
    per_block: Positive
    """Records of a full block."""

    @property
    def blocks_at_once(self) -> int:
        """Number of blocks of a piece."""
        return max(1, PIECE_BYTES // self.block_bytes)

    def records_of(self, blocks: NDArray[np.uint64]) -> Records:
        """Return all records of some blocks, also those that their heads do not count."""
        longs = blocks.reshape(-1, self.block_bytes // 8)[:, HEAD_LONGS:]
        return longs[:, : self.per_block * self.record_bytes // 8].reshape(-1, self.record_bytes // 8)

    def counted(self, blocks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of all records of some blocks their heads count."""
        counts = blocks.reshape(-1, self.block_bytes // 8)[:, 1] & np.uint64(2 ** int(cold.COUNT_BITS) - 1)
        return (np.arange(self.per_block, dtype=np.uint64) < counts[:, None]).reshape(-1)


_DECODER = msgspec.json.Decoder(RecordFormat)


def format_of(store: RowStore) -> RecordFormat:
    """Return the description of the records of a store with a cold log."""
    assert store.cold is not None
    group, size = store.group, store.cold.size
    return RecordFormat(
        tables={table.name: table.number for table in group.tables},
        vectors=group.vectors,
        dtype=group.dtype,
        epoch_bits=group.epoch_bits if group.counts_uses else None,
        record_bytes=size.record_bytes,
        block_bytes=size.block_bytes,
        per_block=size.per_block,
    )


# Write


def save_cold(
    store: RowStore, cut: Sequence[CutSegment], directory: Location, on_rows: Callable[[int], None]
) -> list[SavedFile]:
    """Add the segments of a store's cut to a checkpoint, and write their list; all is on disk when this returns.

    Call `on_rows` after each piece of work, with the number of rows added. Raise DiskError for a file that cannot be
    read or written, and for a damaged segment.
    """
    if not cut:
        return []
    assert store.cold is not None
    copies = store.cold.copied = not store.cold.copied
    form, listed = format_of(store), file_name(store.group, store.partitions)
    rows = np.zeros(max(form.tables.values()) + 1, np.int64)
    segments: list[SavedFile] = []
    with writing_file(directory / listed) as sink, HashingFile(sink) as file:
        schema = SCHEMA.with_metadata({RECORDS_KEY: msgspec.json.encode(form)})
        options = pa.ipc.IpcWriteOptions(use_threads=False)
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema, options=options) as out:
            for part in sorted(cut, key=lambda segment_cut: segment_cut.sequence):
                segment, name, live = part.segment, segment_name(listed, part.sequence), part.live
                if segment.content is None:
                    segment.content = _content(segment, form, lambda: on_rows(0))
                _add_segment(segment, form, directory / name, copies, lambda: on_rows(0))
                segments.append(SavedFile(directory.name, name, segment.nbytes, segment.content.xxh128))
                rows += _by_table(form, segment.content, live)
                out.write_batch(_entry(name, live, schema))
                on_rows(int(np.count_nonzero(live)))
        digest = file.finish()
    tables = {name: int(rows[number]) for name, number in form.tables.items() if rows[number]}
    partitions = store.partitions
    saved = SavedRows(store.group.number, store.group.partitions, partitions.start, partitions.stop, tables)
    return [SavedFile(directory.name, listed, file.nbytes, digest, saved), *segments]


def _entry(name: str, live: NDArray[np.bool_], schema: pa.Schema) -> pa.RecordBatch:
    bits = np.packbits(live, bitorder="little").tobytes()
    return pa.RecordBatch.from_arrays([pa.array([name]), pa.array([bits], pa.binary())], schema=schema)


def _content(segment: LogSegment, form: RecordFormat, on_piece: Callable[[], None]) -> Content:
    """Read a segment once, and return what later checkpoints need too."""
    segment.seal()
    digest, several = xxh128(), len(form.tables) > 1
    numbers = [np.empty(0, np.min_scalar_type(max(form.tables.values())))]
    for blocks in _pieces(segment, form):
        if cold.damaged_block(blocks, form.block_bytes // 4) >= 0:
            raise DiskFaultError(f"{segment.path} is damaged: the disk did not return what was written")
        digest.update(blocks.data)
        if several:
            numbers.append(form.records_of(blocks).view(np.uint32)[:, int(cold.TABLE)].astype(numbers[0].dtype))
        on_piece()
    return Content(digest.hexdigest(), np.concatenate(numbers))


def _pieces(segment: LogSegment, form: RecordFormat) -> Iterator[NDArray[np.uint64]]:
    step = form.blocks_at_once * form.block_bytes
    for start in range(0, segment.nbytes, step):
        yield segment.read(start, min(start + step, segment.nbytes))


def _add_segment(
    segment: LogSegment, form: RecordFormat, path: Location, copies: bool, on_piece: Callable[[], None]
) -> None:
    """Link the file of a segment, or its copy with `copies`; copy it if that is not possible."""
    if isinstance(path, Path):
        with disk.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        source = segment.copy if copies else segment.file
        if source is not None and disk.link(source, path):
            return
    assert segment.content is not None
    digest = xxh128()
    with writing_file(path) as sink:
        for blocks in _pieces(segment, form):
            digest.update(blocks.data)
            sink.write(blocks)
            on_piece()
    if digest.hexdigest() != segment.content.xxh128:
        raise DiskFaultError(f"{segment.path} is damaged: the disk did not return what was written")
    if copies and isinstance(path, Path):
        if segment.copy is not None:
            os.close(segment.copy)
        segment.copy = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _by_table(form: RecordFormat, content: Content, live: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of live records of each table, by table number."""
    size = max(form.tables.values()) + 1
    numbers = content.tables[live] if content.tables.size else np.full(np.count_nonzero(live), size - 1)
    return np.bincount(numbers, minlength=size)


# Read


def cold_batches(parts: Sequence[tuple[Location, SavedFile]], on_bytes: OnBytes | None) -> Iterator[pa.RecordBatch]:
    """Yield the live records as rows; `parts` are the list and its segments, the oldest first.

    With `on_bytes`, compare the content of every file with its checksum, after its last batch; call it with the size
    of each part read. Raise CheckpointError for files that are missing, damaged, or not those of the list.
    """
    (path, listed), *segments = parts
    assert listed.rows is not None
    entries = record_batches(path) if on_bytes is None else hashed_batches(path, listed, on_bytes)
    with entries as batches:
        for batch, (segment, file) in zip(batches, segments, strict=True):
            batch.validate(full=True)
            form = _DECODER.decode(batch.schema.metadata[RECORDS_KEY])
            [name], [bits] = (batch.column(key).to_pylist() for key in SCHEMA.names)
            if name != file.name:
                raise CheckpointError(f"{path} does not list {file.name}")
            live = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").astype(np.bool_)
            yield from _rows_of(segment, file, form, live, listed.rows.partitions, on_bytes)


def _rows_of(
    path: Location,
    file: SavedFile,
    form: RecordFormat,
    live: NDArray[np.bool_],
    partitions: int,
    on_bytes: OnBytes | None,
) -> Iterator[pa.RecordBatch]:
    schema = row_schema(form.vectors, form.epoch_bits is not None).with_metadata({PARTITIONS_KEY: str(partitions)})
    step, at = form.blocks_at_once * form.block_bytes, 0
    with reading_stream(path) as stream:
        source = HashedSource(stream, on_bytes or (lambda nbytes: None))
        while content := source.read(step):
            blocks = np.frombuffer(content, np.uint64)
            if cold.damaged_block(blocks, form.block_bytes // 4) >= 0:
                raise CheckpointError(f"{path} is damaged; use another checkpoint")
            records = form.records_of(blocks)
            live_here = live[at : at + len(records)]
            if (live_here & ~form.counted(blocks)).any():
                raise CheckpointError(f"{path} does not have all records of its list; use another checkpoint")
            at += len(records)
            if live_here.any():
                yield _decoded(records[live_here], form, schema)
        if at > live.size or live[at:].any():
            raise CheckpointError(f"{path} has {at:,} records, but its list {live.size:,}; use another checkpoint")
        if on_bytes is not None:
            require_digest(path, file, source.finish())


def _decoded(records: Records, form: RecordFormat, schema: pa.Schema) -> pa.RecordBatch:
    keys, marks = np.ascontiguousarray(records[:, 0]), records.view(np.uint32)
    numbers, last_used = marks[:, int(cold.TABLE)], np.ascontiguousarray(marks[:, int(cold.LAST_USED)])
    column = table_column(form.tables, numbers)
    salts, ids = np.array([table_salt(name) for name in form.tables], np.uint64), np.empty_like(keys)
    hashing.recover_ids(keys, column.indices.to_numpy().astype(np.uint16), salts, ids)
    columns = [column, arrow_numbers(ids), arrow_numbers(last_used.astype(np.int64))]
    if form.epoch_bits is not None:
        uses = np.ascontiguousarray(marks[:, int(cold.USES)])
        columns.append(arrow_numbers(frequencies_of(uses, last_used, form.epoch_bits)))
    vectors = vectors_of(records.view(np.float32)[:, int(cold.RECORD_HEAD) :], form.vectors, form.dtype)
    columns += [
        pa.FixedSizeListArray.from_arrays(arrow_numbers(values.reshape(-1)), values.shape[1])
        for values in vectors.values()
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
