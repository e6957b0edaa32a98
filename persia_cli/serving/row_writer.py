"""The writing of a group's rows: index and values, in one pass over rows in the order of their keys."""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import PersiaError
from persia_cli.kernels.serving.frozen_index import KEYS, WORDS, fill_buckets
from persia_cli.serving.description import Form, FrozenGroup, FrozenTable, Trained, stride_of
from persia_cli.serving.row_forms import encoded

KEYS_PER_HOME = 5
"""Keys for each home: a bucket has seven slots, so few keys are in another bucket than their home."""
MAX_SPARE = 1024
"""Maximum number of buckets after the homes of a table, for keys of the last ones."""
BUCKET_BYTES = 8 * WORDS
RELEASED = 2**26
"""Bytes of files that are written before their pages may leave the memory of the process."""


class TableRules(NamedTuple):
    """The properties of a table that are known before its rows: see `FrozenTable`."""

    name: str
    rows: int
    salt: int
    init_bound: float
    admission: int
    min_count: int
    rounds: int
    size: int


def planned_group(number: int, dim: int, form: Form, trained: Trained, tables: Sequence[TableRules]) -> FrozenGroup:
    """Return the group with the future places of the rows of each table."""
    planned: list[FrozenTable] = []
    row, bucket = 0, 0
    for table in tables:
        homes = max(1, -(-table.rows // KEYS_PER_HOME))
        buckets = homes + min(-(-table.rows // KEYS), MAX_SPARE)
        rest = table._asdict()
        planned.append(FrozenTable(first_row=row, first_bucket=bucket, homes=homes, buckets=buckets, **rest))
        row, bucket = row + table.rows, bucket + buckets
    return FrozenGroup(number, dim, form, stride_of(dim, form), trained, planned)


class GroupWriter:
    """Writes the rows of a group's tables; those of each table are added in the order of their keys."""

    def __init__(self, group: FrozenGroup, index: mmap.mmap, values: mmap.mmap) -> None:
        self._group = group
        self._maps = (index, values)
        self._words = np.frombuffer(index, np.uint64)
        self._values = np.frombuffer(values, np.uint8)
        self._done = [0] * len(group.tables)
        self._bucket = [-1] * len(group.tables)
        self._written = 0

    def add(self, table: int, keys: NDArray[np.uint64], rows: NDArray[np.float32]) -> None:
        """Write rows float32 [n, dim] of a table, by its position; raises UserError, PersiaError."""
        own, stride = self._group.tables[table], self._group.stride
        first = own.first_row + self._done[table]
        if self._done[table] + keys.size > own.rows:
            raise PersiaError(f"table {own.name} has more rows in its files than in the checkpoint's manifest")
        part = self._values[first * stride : (first + keys.size) * stride]
        part[...] = encoded(rows, self._group.form, own.name).reshape(-1)
        self._fill(table, keys, first)
        self._done[table] += keys.size
        self._written += part.size + keys.size * BUCKET_BYTES // KEYS_PER_HOME
        if self._written >= RELEASED:
            # The pages of a shared mapping stay in the page cache, and are written from there.
            for each in self._maps:
                each.madvise(mmap.MADV_DONTNEED)
            self._written = 0

    def finish(self) -> None:
        """Close the indices of all tables; raises PersiaError if rows are missing."""
        for table, own in enumerate(self._group.tables):
            if self._done[table] != own.rows:
                raise PersiaError(
                    f"table {own.name} has {self._done[table]:,} rows in its files, but in the checkpoint's manifest "
                    f"{own.rows:,}; check it with persia checkpoint verify"
                )
            self._fill(table, np.empty(0, np.uint64), own.first_row + own.rows)

    def release(self) -> None:
        """Release the mapped memory, so that it can be unmapped."""
        del self._words, self._values

    def _fill(self, table: int, keys: NDArray[np.uint64], first: int) -> None:
        own = self._group.tables[table]
        words = self._words[own.first_bucket * WORDS : (own.first_bucket + own.buckets) * WORDS]
        bucket = fill_buckets(keys, own.homes, own.buckets, first, self._bucket[table], words)
        if bucket < -1:
            raise PersiaError(
                f"the rows of table {own.name} are not in the order of their keys, or too many ids share a place in "
                "its index; check it with persia checkpoint verify"
            )
        self._bucket[table] = bucket


@contextmanager
def writing_group(folder: Path, group: FrozenGroup) -> Iterator[GroupWriter]:
    """Yield a writer of the two files of a group; at the end they are complete and on disk. Raises OSError."""
    sizes = {group.index: group.buckets * BUCKET_BYTES, group.values: group.rows * group.stride}
    with _mapped(folder / group.index, sizes[group.index]) as index, _mapped(
        folder / group.values, sizes[group.values]
    ) as values:  # fmt: skip
        writer = GroupWriter(group, index, values)
        try:
            yield writer
            writer.finish()
        finally:
            writer.release()


@contextmanager
def _mapped(path: Path, nbytes: int) -> Iterator[mmap.mmap]:
    """Yield a new file of this size, at least a byte, as writable memory; it is on disk at the end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        # A write to mapped memory cannot fail, so the space is allocated before.
        os.posix_fallocate(descriptor, 0, max(nbytes, BUCKET_BYTES))
        mapped = mmap.mmap(descriptor, max(nbytes, BUCKET_BYTES))
        # The traceback of an error refers to arrays on the memory, which is unmapped after them.
        yield mapped
        mapped.close()
        os.ftruncate(descriptor, nbytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
