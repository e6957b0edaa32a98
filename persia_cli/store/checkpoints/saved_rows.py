"""The rows of a checkpoint, read from its files: those that were in memory, and those of cold logs."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persia_cli import disk
from persia_cli.errors import CheckpointError
from persia_cli.kernels.rows import hashing
from persia_cli.storage.hashed_files import read_ahead
from persia_cli.storage.locations import Location
from persia_cli.store.checkpoints.cold_files import cold_batches
from persia_cli.store.checkpoints.manifest import Manifest, verify
from persia_cli.store.checkpoints.record_batches import (
    hashed_batches,
    record_batches,
    rows_by_table,
    understanding_rows,
)
from persia_cli.store.checkpoints.saved import SavedFile, SavedRows
from persia_cli.store.layout import table_salt

Batches = Generator[pa.RecordBatch, None, None]
RUN_BYTES = 2**28
"""Approximate size of rows that are sorted in memory."""
RUN_ROWS = 8192
"""Maximum number of rows in a record batch of sorted rows: one of each file is in memory at a time."""


@dataclass(frozen=True)
class RowFile:
    """The rows of a range of partitions that were in memory: one file, in the order of keys, then of tables."""

    rows: SavedRows
    tables: tuple[str, ...]
    """The tables of the group, in the order of rows with equal keys."""
    parts: tuple[tuple[Location, SavedFile], ...]
    """The file with its path; of cold rows the list, then its segments, the oldest first."""

    @property
    def path(self) -> Location:
        """The file that names the rows in errors."""
        return self.parts[0][0]

    def verify(self, on_bytes: Callable[[int], None] = lambda nbytes: None) -> None:
        """Compare the content of every file with its checksum; raise CheckpointError as `manifest.verify` does."""
        for path, file in self.parts:
            verify(path, file, on_bytes)

    @contextmanager
    def checked_batches(self, on_bytes: Callable[[int], None]) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the result of `batches`, and compare the content of every file with its checksum, as `verify` does.

        Batches are read ahead on a thread. A file is read once, and its checksum is known only after the last batch: if
        this raises CheckpointError, the batches before that are not valid.
        """
        try:
            with understanding_rows(self.path), closing(read_ahead(_all_of((self,), self._read(on_bytes)))) as ahead:
                yield ahead
        except CheckpointError:
            # Whatever the first error was: that a file has changed is what its user needs to know.
            self.verify()
            raise

    def batches(self) -> Batches:
        """Yield every row once, in the order of the file.

        Raise CheckpointError for a file that is missing or not a file of rows, and for other numbers of rows than were
        saved.
        """
        return _all_of((self,), self._read(None))

    def _read(self, on_bytes: Callable[[int], None] | None) -> Batches:
        """Yield the rows; with `on_bytes` compare the content with its checksum meanwhile."""
        path, file = self.parts[0]
        with record_batches(path) if on_bytes is None else hashed_batches(path, file, on_bytes) as batches:
            for batch in batches:
                batch.validate(full=True)
                yield batch


class ColdRowFile(RowFile):
    """Rows that were not in memory: a list of segments, then those. Rows are in no order of keys."""

    def _read(self, on_bytes: Callable[[int], None] | None) -> Batches:
        with understanding_rows(self.path):
            yield from cold_batches(self.parts, on_bytes)


def saved_rows(folder: Location, manifest: Manifest, with_dense: bool) -> list[RowFile]:
    """Return the rows of all partitions of a checkpoint, by name, without those of dense weights unless `with_dense`.

    Rows that were in memory come first, each file in the order of keys, then those of cold logs.
    """
    return [
        *(
            RowFile(rows, manifest.tables_of(rows.group), ((folder / file.folder / file.name, file),))
            for file in manifest.row_files(with_dense)
            if (rows := file.rows) is not None
        ),
        *(cold_row_file(folder, manifest, listed) for listed in manifest.cold_files(with_dense)),
    ]


def cold_row_file(folder: Location, manifest: Manifest, listed: SavedFile) -> ColdRowFile:
    """Return the cold rows of one of `Manifest.cold_files` of the checkpoint in `folder`."""
    assert listed.rows is not None
    files = [listed, *manifest.segments_of(listed)]
    parts = tuple((folder / file.folder / file.name, file) for file in files)
    return ColdRowFile(listed.rows, manifest.tables_of(listed.rows.group), parts)


def _all_of(files: Sequence[RowFile], batches: Batches) -> Batches:
    """Yield batches, and require that they have all rows of the files that were saved."""
    counts = Counter[str]()
    with closing(batches):
        for batch in batches:
            counts.update(rows_by_table(batch))
            yield batch
    saved = sum((Counter(file.rows.tables) for file in files), Counter[str]())
    if counts != saved:
        raise CheckpointError(f"{files[0].path} has {dict(counts)} rows of its tables, but {dict(saved)} were saved")


# Both in the order of keys


def in_order(memory: RowFile, cold: RowFile) -> Batches:
    """Yield the rows of a file and the cold ones of the same partitions, in the order of keys.

    It sorts the cold rows in a temporary folder. Raise CheckpointError as `RowFile.batches` does, and for a row that is
    in both, DiskError if the folder has no space.
    """
    with TemporaryDirectory(prefix="persia-order-") as folder, ExitStack() as stack:
        runs = _write_runs(cold.batches(), cold.tables, Path(folder))
        sources = [stack.enter_context(closing(_RowSource(path, memory.tables))) for path in (memory.path, *runs)]
        yield from _all_of((memory, cold), _merged(sources, memory.path))


def _write_runs(batches: Iterable[pa.RecordBatch], tables: Sequence[str], folder: Path) -> list[Path]:
    """Write batches of rows, which may be in any order, to files in the order of keys, each of about RUN_BYTES."""
    runs: list[Path] = []
    for part in _parts(batches):
        table = pa.Table.from_batches(part).unify_dictionaries().combine_chunks()
        [batch] = table.to_batches()
        keys, numbers = _keys_of(batch, tables)
        ordered = table.take(pa.array(np.lexsort((numbers, keys))))
        runs.append(folder / f"run-{len(runs)}")
        with disk.writing(runs[-1]), pa.OSFile(str(runs[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(ordered, max_chunksize=RUN_ROWS)
    return runs


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    part: list[pa.RecordBatch] = []
    for batch in batches:
        part.append(batch)
        if sum(rows.nbytes for rows in part) >= RUN_BYTES:
            yield part
            part = []
    if sum(rows.num_rows for rows in part):
        yield part


class _OrderedRows(NamedTuple):
    """Some rows in the order of keys and tables."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    """Position of each row's table among those of its group."""
    batch: pa.RecordBatch

    @property
    def last(self) -> tuple[int, int]:
        """Key and table of the last row."""
        return int(self.keys[-1]), int(self.tables[-1])

    def part(self, rows: slice) -> "_OrderedRows":
        """Return some of the rows."""
        start, stop, _ = rows.indices(self.keys.size)
        return _OrderedRows(self.keys[rows], self.tables[rows], self.batch.slice(start, stop - start))


class _RowSource:
    """The unread rest of a file whose rows are in order."""

    def __init__(self, path: Location, tables: Sequence[str]) -> None:
        """Open the file when it is first read; `tables` are those of its group, in the order of equal keys."""
        self._batches = _ordered_rows(path, tables)
        self._left: _OrderedRows | None = None

    def close(self) -> None:
        """Close the file."""
        self._batches.close()

    def peek(self) -> _OrderedRows | None:
        """Return the rows that have been read and not taken, at least one; None at the end of the file."""
        if self._left is None or not self._left.keys.size:
            self._left = next(self._batches, None)
        return self._left

    def pop_through(self, key: int, table: int) -> _OrderedRows:
        """Return the rows that have been read up to and including this key and table."""
        assert self._left is not None
        keys, wanted = self._left.keys, np.uint64(key)
        low, high = (int(np.searchsorted(keys, wanted, side)) for side in ("left", "right"))
        stop = low + int(np.searchsorted(self._left.tables[low:high], np.uint16(table), "right"))
        taken, self._left = self._left.part(slice(0, stop)), self._left.part(slice(stop, None))
        return taken


def _ordered_rows(path: Location, tables: Sequence[str]) -> Generator[_OrderedRows, None, None]:
    """Yield the content of a file, without empty batches; raise CheckpointError if it is not in order."""
    last = (-1, -1)
    with record_batches(path) as batches:
        for batch in batches:
            batch.validate(full=True)
            if not batch.num_rows:
                continue
            rows = _OrderedRows(*_keys_of(batch, tables), batch)
            if not _rises(rows.keys, rows.tables) or (int(rows.keys[0]), int(rows.tables[0])) <= last:
                raise CheckpointError(f"{path} is damaged: its rows are not in the order of their keys")
            last = rows.last
            yield rows


def _rises(keys: NDArray[np.uint64], tables: NDArray[np.uint16]) -> bool:
    """Return True if each row comes after the one before it, by key, then table."""
    return bool(((keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (tables[1:] > tables[:-1]))).all())


def _keys_of(batch: pa.RecordBatch, tables: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """Return the keys of a batch's rows, and the position of each row's table among `tables`."""
    column, numbers = batch.column("table"), {name: number for number, name in enumerate(tables)}
    names = column.dictionary.to_pylist()
    numbers_of_rows = np.array([numbers[name] for name in names], np.uint16)[column.indices.to_numpy()]
    ids = batch.column("id").to_numpy()
    keys = np.empty(ids.size, np.uint64)
    hashing.hash_ids(ids, numbers_of_rows, np.array([table_salt(name) for name in tables], np.uint64), keys)
    return keys, numbers_of_rows


def _merged(sources: Sequence[_RowSource], path: Location) -> Batches:
    """Yield the rows of all sources in the order of keys and tables; raise CheckpointError for one that two have."""
    while left := [(source, rows) for source in sources if (rows := source.peek()) is not None]:
        bound = min(rows.last for _, rows in left)
        pieces = [piece for source, _ in left if (piece := source.pop_through(*bound)).keys.size]
        if len(pieces) == 1:
            yield pieces[0].batch
            continue
        keys, tables = (np.concatenate(arrays) for arrays in zip(*((p.keys, p.tables) for p in pieces), strict=True))
        order = np.lexsort((tables, keys))
        if not _rises(keys[order], tables[order]):
            raise CheckpointError(f"{path} has rows that are also among the cold ones of the checkpoint")
        table = pa.Table.from_batches([piece.batch for piece in pieces]).unify_dictionaries().combine_chunks()
        yield from table.take(pa.array(order)).to_batches()
