"""Samples from Parquet files with bounded memory."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Event

import numpy as np

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.control.position import SplitName, TrainingData
from persia_cli.data.read.batch import Batch, join
from persia_cli.data.read.block import DecodedBlock, Room, block_columns, decode_block
from persia_cli.data.read.order import Block, SampleOrder, block_size
from persia_cli.data.read.scan import ParquetScan
from persia_cli.data.read.slices import RowPiece, SliceReader
from persia_cli.metric import Link


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
        once: bool = False,
    ) -> None:
        """Open a split; with `queries` samples of the training split too have query ids, if the data set has any.

        With `once` no epoch follows another, so that none is decoded ahead.
        """
        self._dataset = dataset
        self._links = links
        self._found = found
        self._split = split
        self._query_column = dataset.group_by if split == "eval" or queries else None
        shuffle = dataset.shuffle and split == "train"
        split_rows = found.split_rows.of(split)
        size = block_size(dataset, found.groups, split_rows)
        self._order = SampleOrder(split_rows, size, shuffle, seed)
        self._shuffle, self._once = shuffle, once
        self._counts: Counter[str] = Counter()
        self._blocks: dict[int, tuple[Block, ...]] = {}
        self._current: tuple[tuple[int, int], DecodedBlock] | None = None
        self._next: tuple[tuple[int, int], Future[DecodedBlock]] | None = None
        self._rooms = [Room(), Room()]
        """Memory of the next block, and of the current one."""
        self._stop = Event()
        columns = block_columns(dataset, self._query_column)
        self._reader = SliceReader(found.filesystem, found.selector, split, columns, size.rows)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="persia-read")

    @property
    def rows(self) -> int:
        """Rows of the split."""
        return self._order.rows

    @property
    def train_data(self) -> TrainingData:
        """The place of the training split in the files."""
        return self._found.train_data

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of values filled or cut in the blocks read so far, by name; a block read twice counts twice."""
        return dict(self._counts)

    @property
    def at_last_block(self) -> bool:
        """True if the last block of an epoch is in memory."""
        return self._current is not None and self._current[0][1] + 1 == len(self._epoch(self._current[0][0]))

    def prefetch(self, epoch: int) -> None:
        """Begin to decode the first block of an epoch."""
        self._prefetch((epoch if self._shuffle else 0, 0))

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
            self._rooms.reverse()
            following = self._after(epoch, number)
            if following != key:
                self._prefetch(following)
        return self._current[1]

    def _after(self, epoch: int, number: int) -> tuple[int, int]:
        if number + 1 < len(self._epoch(epoch)):
            return epoch, number + 1
        if self._once:
            return epoch, number
        return (epoch + 1 if self._shuffle else 0), 0

    def _prefetch(self, key: tuple[int, int]) -> None:
        if self._next is not None:
            self._next[1].cancel()
        epoch, number = key
        self._next = key, self._thread.submit(self._decode, epoch, self._epoch(epoch)[number], self._rooms[0])

    def _decode(self, epoch: int, block: Block, room: Room) -> DecodedBlock:
        places = self._order.places(epoch, block)
        return decode_block(
            self._dataset,
            self._found.lists,
            self._found.histories,
            self._pieces(block),
            places,
            room,
            self._links,
            self._query_column,
        )

    def _pieces(self, block: Block) -> Iterator[RowPiece]:
        self._reader.keep(block.groups)
        for number, first, last in zip(*map(np.ndarray.tolist, (block.groups, block.first, block.last)), strict=True):
            if self._stop.is_set():
                raise CancelledError
            yield from self._reader.read(number, self._found.groups[number], first, last, block.parts)
