"""Samples from Parquet files with bounded memory; their order is a pure function of seed, epoch, files and block."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.loss import Link
from persia_cli.control.position import SplitName, TrainingData
from persia_cli.data.batch import Batch, join
from persia_cli.data.block import DecodedBlock, decode_block
from persia_cli.data.random_bits import permutation, salt
from persia_cli.data.row_groups import RowGroupReader
from persia_cli.data.scan import ParquetScan

_GROUPS, _ROWS = 1, 2


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows [start, stop) of an epoch's order, and the row groups that hold them, in order."""

    number: int
    start: int
    stop: int
    groups: tuple[int, ...]


class SampleOrder:
    """Order of one split's rows.

    Row groups that hold rows of the split are permuted; consecutive ones form blocks of `block_groups`; rows are
    permuted within a block. Without shuffle all rows stay in file order and a block is one row group.
    """

    def __init__(self, group_rows: Sequence[int], block_groups: int, shuffle: bool, seed: int) -> None:
        """Take the number of the split's rows in every row group, in file order."""
        self._group_rows = np.asarray(group_rows, np.int64)
        self._groups = np.flatnonzero(self._group_rows)
        self._block_groups = block_groups if shuffle else 1
        self._shuffle = shuffle
        self._seed = seed
        self.rows = int(self._group_rows.sum())

    def blocks(self, epoch: int) -> tuple[Block, ...]:
        """Return the blocks of an epoch; they cover rows [0, self.rows) without gaps."""
        groups = self._groups
        if self._shuffle:
            groups = groups[permutation(salt(self._seed, epoch, _GROUPS), groups.size)]
        blocks: list[Block] = []
        start = 0
        for first in range(0, groups.size, self._block_groups):
            members = groups[first : first + self._block_groups]
            stop = start + int(self._group_rows[members].sum())
            blocks.append(Block(len(blocks), start, stop, tuple(members.tolist())))
            start = stop
        return tuple(blocks)

    def places(self, epoch: int, block: Block) -> NDArray[np.int64]:
        """Return the position in the block of each row, in the order read: int64 [rows], a permutation."""
        size = block.stop - block.start
        if not self._shuffle:
            return np.arange(size)
        return permutation(salt(self._seed, epoch, _ROWS, block.number), size)


class ParquetSource:
    """One split of Parquet files; holds one decoded block while a single background thread decodes the next."""

    def __init__(
        self,
        dataset: ParquetDataset,
        found: ParquetScan,
        split: SplitName,
        seed: int,
        links: Mapping[str, Link],
        queries: bool = False,
    ) -> None:
        """Open a split; with `queries` samples of the training split too have query ids, if the data set has any."""
        self._dataset = dataset
        self._links = links
        self._found = found
        self._split = split
        self._query_column = dataset.group_by if split == "eval" or queries else None
        shuffle = dataset.shuffle and split == "train"
        self._order = SampleOrder(found.split_rows.of(split), dataset.shuffle_row_groups, shuffle, seed)
        self._shuffle = shuffle
        self._counts: Counter[str] = Counter()
        self._blocks: dict[int, tuple[Block, ...]] = {}
        self._current: tuple[tuple[int, int], DecodedBlock] | None = None
        self._next: tuple[tuple[int, int], Future[DecodedBlock]] | None = None
        self._stop = Event()
        self._reader = RowGroupReader(found.filesystem)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="persia-read")

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return self._order.rows

    @property
    def train_data(self) -> TrainingData:
        """Where the training split of the files lies."""
        return self._found.train_data

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values filled or cut in the blocks read so far, by name; a block read twice counts twice."""
        return dict(self._counts)

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        """Return rows [start, stop) of an epoch's order, 0 <= start < stop <= rows; raises DataError."""
        if not 0 <= start < stop <= self.rows:
            raise ValueError(f"rows [{start}, {stop}) are not within [0, {self.rows})")
        epoch = epoch if self._shuffle else 0
        blocks = self._epoch(epoch)
        number = bisect_right(blocks, start, key=lambda block: block.start) - 1
        parts: list[Batch] = []
        while start < stop:
            block = blocks[number]
            end = min(stop, block.stop)
            parts.append(self._decoded(epoch, number).batch(start - block.start, end - block.start))
            start, number = end, number + 1
        return join(parts)

    def close(self) -> None:
        """Stop the background thread, wait for it, and close the file it reads; may be called twice."""
        self._stop.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        self._current = self._next = None

    def _epoch(self, epoch: int) -> tuple[Block, ...]:
        if epoch not in self._blocks:
            self._blocks = {known: self._blocks[known] for known in self._blocks if abs(known - epoch) <= 1}
            self._blocks[epoch] = self._order.blocks(epoch)
        return self._blocks[epoch]

    def _decoded(self, epoch: int, number: int) -> DecodedBlock:
        key = (epoch, number)
        if self._current is None or self._current[0] != key:
            self._current = None
            if self._next is None or self._next[0] != key:
                self._prefetch(key)
            assert self._next is not None
            block = self._next[1].result()
            self._counts.update(block.counts)
            self._current, self._next = (key, block), None
            following = self._after(epoch, number)
            if following != key:
                self._prefetch(following)
        return self._current[1]

    def _after(self, epoch: int, number: int) -> tuple[int, int]:
        if number + 1 < len(self._epoch(epoch)):
            return epoch, number + 1
        return (epoch + 1 if self._shuffle else 0), 0

    def _prefetch(self, key: tuple[int, int]) -> None:
        if self._next is not None:
            self._next[1].cancel()
        epoch, number = key
        self._next = key, self._thread.submit(self._decode, epoch, self._epoch(epoch)[number])

    def _decode(self, epoch: int, block: Block) -> DecodedBlock:
        groups = [self._found.groups[group] for group in block.groups]
        places = self._order.places(epoch, block)
        lists, reader = self._found.lists, self._reader
        return decode_block(
            self._dataset,
            lists,
            self._split,
            reader,
            groups,
            places,
            self._check_stop,
            self._links,
            self._query_column,
        )

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise CancelledError
