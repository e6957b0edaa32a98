"""Columns of a request as bytes in its body: their offsets are known, and they become a batch in one pass."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.read.batch import Batch

MAX_IDS = np.iinfo(np.uint32).max
"""Maximum number of ids of a batch, by the type of its offsets."""


class PackedColumn(NamedTuple):
    """Numbers at an offset of a body."""

    name: str
    dtype: np.dtype[Any]
    size: int
    begin: int


class PackedLayout:
    """The offsets of the columns in bodies of the same layout."""

    def __init__(self, columns: Sequence[PackedColumn]) -> None:
        self.columns = {column.name: column for column in columns}


class PackedColumns(Mapping[str, NDArray[Any]]):
    """The columns of one body; each is made on access, as a copy, since a body's numbers are not aligned."""

    def __init__(self, body: bytes, layout: PackedLayout) -> None:
        self.body, self.layout = body, layout

    def __getitem__(self, name: str) -> NDArray[Any]:
        column = self.layout.columns[name]
        return numbers(self.body, column.dtype, column.size, column.begin)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.columns)

    def __len__(self) -> int:
        return len(self.layout.columns)


def numbers(body: bytes | memoryview, dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
    """Return numbers at an offset of a body, as a copy, since arrays of the model's code are aligned."""
    if not count:
        return np.empty(0, dtype)  # a buffer cannot be empty
    return np.frombuffer(body, dtype, count, begin).copy()


class PackedReader:
    """Makes batches of bodies of one layout."""

    def __init__(self, dense: Sequence[PackedColumn], ids: Sequence[PackedColumn], size: int) -> None:
        self._size, self._dense, self._sparse = size, len(dense), len(ids)
        self._places = (*_places(dense), *_places(ids))
        self._end = max(column.begin + column.size * column.dtype.itemsize for column in (*dense, *ids))
        from persia_cli.kernels.serving.unpack import (
            unpack,  # numba, which roles and commands that import this do not need
        )

        self._unpack = unpack

    @classmethod
    def of(cls, dense: Sequence[PackedColumn], ids: Sequence[PackedColumn]) -> Self | None:
        """Return a reader of float32 numbers and ids in 64 bits; None if they do not make samples."""
        sizes = {column.size for column in (*dense, *ids)}
        size = max(sizes, default=0)
        if not size or sizes - {1, size} or size * len(ids) > MAX_IDS:
            return None
        return cls(dense, ids, size)

    def batch(self, body: bytes) -> Batch | None:
        """Return the samples of a body; None if a number is not finite, and has to be filled, or named in an error."""
        if len(body) < self._end:
            raise ValueError(f"the body has {len(body)} bytes, and its columns end at {self._end}")
        dense = np.empty(self._size * self._dense, np.float32)
        ids = np.empty(self._size * self._sparse, np.uint64)
        if not self._unpack(np.frombuffer(body, np.uint8), *self._places, self._size, dense, ids):
            return None
        return Batch(
            dense=dense.reshape(self._size, self._dense),
            labels=np.empty((self._size, 0), np.float32),
            weights=None,
            ids=ids,
            offsets=np.arange(ids.size + 1, dtype=np.uint32),
            features=self._sparse,
            query_ids=None,
        )


def _places(columns: Sequence[PackedColumn]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offset of each column, and its step: 0 for a single value, which is that of all samples."""
    begins, steps = [column.begin for column in columns], [column.size > 1 for column in columns]
    return np.array(begins, np.int64), np.array(steps, np.int64)
