"""The writing of a group's rows: index and values, in one pass over rows in the order of their keys.

Vectors in float32 become bytes of the file's dtype, which `persia_cli.kernels.serving.frozen_rows` reads.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.errors import PersiaError, UserError
from persia_cli.kernels.serving.frozen_index import KEYS, WORDS, fill_buckets
from persia_cli.serving.description import Form, FrozenGroup, FrozenTable, Trained, stride_of

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
BFLOAT16_OVERFLOW = np.float32(2.0**127 * (2.0 - 2.0**-8))
"""The smallest float32 that is rounded to infinity in bfloat16, whose significand has 8 bits."""


def encoded(rows: Floats, form: Form, table: str) -> Bytes:
    """Return rows float32 [n, dim] as bytes [n, stride].

    Raises UserError for a row of `table` that the dtype cannot represent.
    """
    if form == "float32":
        return np.ascontiguousarray(rows).view(np.uint8)
    if not np.isfinite(rows).all():
        raise UserError(f"table {table} has a row that is not finite, which {form} cannot hold; use --rows float32")
    match form:
        case "bfloat16":
            return _bfloat16(rows, table)
        case "float16":
            with np.errstate(over="ignore"):
                halves = rows.astype(np.float16)
            if not np.isfinite(halves).all():
                raise UserError(f"table {table} has a value beyond the range of float16; use --rows bfloat16")
            return halves.view(np.uint8)
        case "int8":
            return _int8(rows, table)
        case "int4":
            return _int4(rows, table)


def _bfloat16(rows: Floats, table: str) -> Bytes:
    if (np.abs(rows) >= BFLOAT16_OVERFLOW).any():
        raise UserError(f"table {table} has a value beyond the range of bfloat16; use --rows float32")
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16).view(np.uint8)


def _int8(rows: Floats, table: str) -> Bytes:
    """Return rows in the layout of FBGEMM's Fused8BitRowwiseQuantizedSBFloat."""
    low = rows.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        range_ = rows.max(axis=1, keepdims=True) - low
    if not np.isfinite(range_).all():
        raise UserError(f"table {table} has a row whose values lie too far apart for int8; use --rows float32")
    numbers = np.rint((rows - low) * (np.float32(255.0) / (range_ + np.float32(1e-8))))
    tail = np.concatenate([range_ / np.float32(255.0), low], axis=1)
    return np.concatenate([numbers.astype(np.uint8), tail.view(np.uint8)], axis=1)


def _int4(rows: Floats, table: str) -> Bytes:
    """Return rows in the layout of FBGEMM's FusedNBitRowwiseQuantizedSBHalf with 4 bits."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        low = rows.min(axis=1, keepdims=True).astype(np.float16)
        bias = low.astype(np.float32)
        range_ = rows.max(axis=1, keepdims=True) - bias
        scale = (range_ / np.float32(15.0)).astype(np.float16)
        scale[scale == 0] = 1.0
        inverse = np.float32(1.0) / scale.astype(np.float32)
        endless = np.isinf(inverse)
        scale[endless], inverse[endless] = 1.0, 1.0
    if not (np.isfinite(low).all() and np.isfinite(scale).all()):
        raise UserError(f"table {table} has a row beyond the range of float16, as int4 has it; use --rows int8")
    numbers = np.clip(np.rint((rows - bias) * inverse), 0, 15).astype(np.uint8)
    if numbers.shape[1] % 2:
        numbers = np.concatenate([numbers, np.zeros((len(numbers), 1), np.uint8)], axis=1)
    packed = numbers[:, 0::2] | numbers[:, 1::2] << np.uint8(4)
    return np.concatenate([packed, scale.view(np.uint8), low.view(np.uint8)], axis=1)


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
        frozen, stride = self._group.tables[table], self._group.stride
        first = frozen.first_row + self._done[table]
        if self._done[table] + keys.size > frozen.rows:
            raise PersiaError(f"table {frozen.name} has more rows in its files than in the checkpoint's manifest")
        part = self._values[first * stride : (first + keys.size) * stride]
        part[...] = encoded(rows, self._group.form, frozen.name).reshape(-1)
        self._fill(table, keys, first)
        self._done[table] += keys.size
        self._written += part.size + keys.size * BUCKET_BYTES // KEYS_PER_HOME
        if self._written >= RELEASED:
            # The pages of a shared mapping stay in the page cache, and are written from there.
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)
            self._written = 0

    def finish(self) -> None:
        """Close the indices of all tables; raises PersiaError if rows are missing."""
        for table, frozen in enumerate(self._group.tables):
            if self._done[table] != frozen.rows:
                raise PersiaError(
                    f"table {frozen.name} has {self._done[table]:,} rows in its files, but in the checkpoint's "
                    f"manifest {frozen.rows:,}; check it with persia checkpoint verify"
                )
            self._fill(table, np.empty(0, np.uint64), frozen.first_row + frozen.rows)

    def release(self) -> None:
        """Release the mapped memory, so that it can be unmapped."""
        del self._words, self._values

    def _fill(self, table: int, keys: NDArray[np.uint64], first: int) -> None:
        frozen = self._group.tables[table]
        buckets = self._words[frozen.first_bucket * WORDS : (frozen.first_bucket + frozen.buckets) * WORDS]
        bucket = fill_buckets(keys, frozen.homes, frozen.buckets, first, self._bucket[table], buckets)
        if bucket < -1:
            raise PersiaError(
                f"the rows of table {frozen.name} are not in the order of their keys, or too many ids share a place in "
                "its index; export an older checkpoint"
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
