"""Columns of a request that lie as bytes in its body: where is known, and they become a batch in few copies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.batch import Batch

MOST_IDS = np.iinfo(np.uint32).max
"""Ids of a batch, which its offsets can count."""


class PackedColumn(NamedTuple):
    """Numbers that begin somewhere in a body."""

    name: str
    dtype: np.dtype[Any]
    size: int
    begin: int

    @property
    def end(self) -> int:
        """Where in the body they end."""
        return self.begin + self.size * self.dtype.itemsize


class PackedLayout:
    """Where the columns lie in bodies of one form."""

    def __init__(self, columns: Sequence[PackedColumn]) -> None:
        self.columns = {each.name: each for each in columns}


class PackedColumns(Mapping[str, NDArray[Any]]):
    """The columns of one body; each is made when it is asked for, as a copy, since a body's numbers are not aligned."""

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
    """Return numbers that begin somewhere in a body, as a copy, since arrays of the model's code are aligned."""
    if not count:
        return np.empty(0, dtype)  # a buffer has to have something
    return np.frombuffer(body, dtype, count, begin).copy()


class _Run(NamedTuple):
    """Columns that follow each other in the body as in the batch, and are copied at once."""

    first: int
    """The first of them in the batch."""
    columns: int
    samples: int
    """Values of each."""
    begin: int

    def copy(self, body: bytes, block: NDArray[Any]) -> None:
        """Copy the numbers to a block of a row for each column; a single value goes to all of its row."""
        given = np.frombuffer(body, block.dtype, self.columns * self.samples, self.begin)
        block[self.first : self.first + self.columns] = given.reshape(self.columns, self.samples)


class PackedReader:
    """Makes batches of bodies of one layout."""

    def __init__(self, dense: Sequence[PackedColumn], ids: Sequence[PackedColumn], size: int) -> None:
        self._size, self._dense, self._sparse = size, len(dense), len(ids)
        self._dense_runs, self._id_runs = _runs(dense), _runs(ids)

    @classmethod
    def of(cls, dense: Sequence[PackedColumn], ids: Sequence[PackedColumn]) -> Self | None:
        """Return a reader of float32 numbers and ids in 64 bits; None if they do not make samples."""
        sizes = {each.size for each in (*dense, *ids)}
        size = max(sizes, default=0)
        if not size or sizes - {1, size} or size * len(ids) > MOST_IDS:
            return None
        return cls(dense, ids, size)

    def batch(self, body: bytes) -> Batch | None:
        """Return the samples of a body; None if a number is not finite, and has to be filled, or named in an error."""
        dense = np.empty((self._size, self._dense), np.float32)
        for run in self._dense_runs:
            run.copy(body, dense.T)
        if not np.isfinite(dense).all():
            return None
        ids = np.empty((self._sparse, self._size), np.uint64)
        for run in self._id_runs:
            run.copy(body, ids)
        return Batch(
            dense=dense,
            labels=np.empty((self._size, 0), np.float32),
            weights=None,
            ids=ids.reshape(-1),
            offsets=np.arange(ids.size + 1, dtype=np.uint32),
            features=self._sparse,
            query_ids=None,
        )


def _runs(columns: Sequence[PackedColumn]) -> list[_Run]:
    found: list[_Run] = []
    end = -1
    for place, column in enumerate(columns):
        if found and column.begin == end and column.size == found[-1].samples:
            found[-1] = found[-1]._replace(columns=found[-1].columns + 1)
        else:
            found.append(_Run(place, 1, column.size, column.begin))
        end = column.end
    return found
