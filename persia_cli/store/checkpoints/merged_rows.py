"""Rows of several files merged into one stream: the newest of each row, without deleted ones.

Every file is in the order of keys, then of tables, so a record batch of each is enough to go through all of them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli import disk
from persia_cli.errors import CheckpointError
from persia_cli.kernels.rows import hashing
from persia_cli.storage.places import Place
from persia_cli.store.checkpoints.record_batches import record_batches
from persia_cli.store.layout import table_salt

RUN_BYTES = 2**28
"""Approximate size of rows that are sorted in memory."""
RUN_ROWS = 8192
"""Maximum number of rows in a record batch of sorted rows: one of each file is in memory at a time."""


class OrderedRows(NamedTuple):
    """Some rows, or ids whose rows were deleted, in the order of keys and tables."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    """Position of each row's table among those of its group."""
    batch: pa.RecordBatch

    @property
    def are_gone(self) -> bool:
        """True for ids whose rows were deleted."""
        return "last_used" not in self.batch.schema.names

    @property
    def last(self) -> tuple[int, int]:
        """Key and table of the last row."""
        return int(self.keys[-1]), int(self.tables[-1])

    def part(self, rows: slice) -> "OrderedRows":
        """Return some of the rows."""
        start, stop, _ = rows.indices(self.keys.size)
        return OrderedRows(self.keys[rows], self.tables[rows], self.batch.slice(start, stop - start))


class RowSource:
    """The unread rest of a file."""

    def __init__(self, path: Place, tables: Sequence[str]) -> None:
        """Open the file when it is first read; `tables` are those of its group, in the order of equal keys."""
        self._batches = ordered_rows(path, tables)
        self._left: OrderedRows | None = None

    def close(self) -> None:
        """Close the file."""
        self._batches.close()

    def peek(self) -> OrderedRows | None:
        """Return the rows that have been read and not taken, at least one; None at the end of the file.

        Raise CheckpointError as `ordered_rows` does.
        """
        if self._left is None or not self._left.keys.size:
            self._left = next(self._batches, None)
        return self._left

    def take(self, key: int, table: int) -> OrderedRows:
        """Return the rows that have been read up to and including this key and table."""
        assert self._left is not None
        keys, wanted = self._left.keys, np.uint64(key)
        low, high = (int(np.searchsorted(keys, wanted, side)) for side in ("left", "right"))
        stop = low + int(np.searchsorted(self._left.tables[low:high], np.uint16(table), "right"))
        taken, self._left = self._left.part(slice(0, stop)), self._left.part(slice(stop, None))
        return taken


def ordered_rows(path: Place, tables: Sequence[str]) -> Generator[OrderedRows, None, None]:
    """Yield the content of a file, without empty batches.

    Raise CheckpointError for a file that is missing, not of rows or ids of these tables, or not in order.
    """
    last = (-1, -1)
    with record_batches(path) as batches:
        for batch in batches:
            batch.validate(full=True)
            if not batch.num_rows:
                continue
            keys, own = keys_of(batch, tables)
            rises = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (own[1:] > own[:-1]))
            if not rises.all() or (int(keys[0]), int(own[0])) <= last:
                raise CheckpointError(f"{path} is damaged: its rows are not in the order of their keys")
            rows = OrderedRows(keys, own, batch)
            last = rows.last
            yield rows


def keys_of(batch: pa.RecordBatch, tables: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """Return the keys of a batch's rows, and the position of each row's table among `tables`."""
    column, numbers = batch.column("table"), {name: number for number, name in enumerate(tables)}
    names = column.dictionary.to_pylist()
    own = np.array([numbers[name] for name in names], np.uint16)[column.indices.to_numpy()]
    ids = batch.column("id").to_numpy()
    keys = np.empty(ids.size, np.uint64)
    hashing.hash_ids(ids, own, np.array([table_salt(name) for name in tables], np.uint64), keys)
    return keys, own


def merged_batches(sources: Sequence[RowSource]) -> Iterator[pa.RecordBatch]:
    """Yield every row once, from the first of the sources that has it, unless that one lists it as deleted.

    Sources are the newest first. Rows come in the order of keys and tables.
    """
    while left := [(source, rows) for source in sources if (rows := source.peek()) is not None]:
        bound = min(rows.last for _, rows in left)
        pieces = [piece for source, _ in left if (piece := source.take(*bound)).keys.size]
        if len(pieces) > 1:
            yield from _newest(pieces)
        elif not pieces[0].are_gone:
            yield pieces[0].batch


def write_runs(batches: Iterable[pa.RecordBatch], tables: Sequence[str], folder: Path) -> list[Path]:
    """Write batches of rows, which may be in any order, to files in the order of keys, each of about RUN_BYTES.

    Raise DiskError if the folder has no space.
    """
    runs: list[Path] = []
    for part in _parts(batches):
        table = pa.Table.from_batches(part).unify_dictionaries().combine_chunks()
        [batch] = table.to_batches()
        keys, own = keys_of(batch, tables)
        order = pa.array(np.lexsort((own, keys)))
        ordered = table.take(order)
        runs.append(folder / f"run-{len(runs)}")
        with disk.writing(runs[-1]), pa.OSFile(str(runs[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(ordered, max_chunksize=RUN_ROWS)
    return runs


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    part: list[pa.RecordBatch] = []
    for batch in batches:
        part.append(batch)
        if sum(each.nbytes for each in part) >= RUN_BYTES:
            yield part
            part = []
    if sum(each.num_rows for each in part):
        yield part


def _newest(pieces: Sequence[OrderedRows]) -> Iterator[pa.RecordBatch]:
    """Merge pieces of the same range of keys, the newest first."""
    keys, tables = (np.concatenate(each) for each in zip(*((p.keys, p.tables) for p in pieces), strict=True))
    rows = [piece.batch for piece in pieces if not piece.are_gone]
    if not rows:
        return
    places, start = np.full(keys.size, -1), 0
    count = 0
    for piece in pieces:
        if not piece.are_gone:
            places[start : start + piece.keys.size] = np.arange(count, count + piece.keys.size)
            count += piece.keys.size
        start += piece.keys.size
    # The sort is stable, so of equal keys the newest comes first.
    order = np.lexsort((tables, keys))
    keys, tables = keys[order], tables[order]
    first = np.concatenate([[True], (keys[1:] != keys[:-1]) | (tables[1:] != tables[:-1])])
    newest = places[order][first]
    table = pa.Table.from_batches(rows).unify_dictionaries().combine_chunks()
    yield from (batch for batch in table.take(pa.array(newest[newest >= 0])).to_batches() if batch.num_rows)
