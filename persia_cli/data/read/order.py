"""The order of a split's samples: a pure function of the seed, the epoch, and the row groups with their sizes.

`training_data` describes the place of samples in files, on which their order depends as on seed, epoch and block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from posixpath import commonpath, dirname, relpath

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import EverySplit, HashSplit
from persia_cli.control.position import MADE_UP, TrainingData
from persia_cli.data.read.random_bits import permutation, salt
from persia_cli.data.read.row_groups import RowGroup
from persia_cli.data.read.splits import SplitRows

BLOCK_ROWS = 1 << 20
"""Rows that are mixed with each other, approximately, where memory allows."""
BLOCK_BYTES = 1 << 29
"""Bytes of a decoded block, approximately; a loader holds two."""
OPEN_GROUPS = 16
"""Row groups that a block takes rows of, at least, where there are so many and memory allows."""
OPEN_BYTES = 1 << 30
"""Bytes of the pages that are decoded while row groups are open."""
COLUMN_BYTES = 3 << 19
"""Bytes of pages of one column of an open row group: writers make pages, and dictionaries, of 1 MiB at most."""
_IN_FILE_ORDER = 8
"""Blocks are smaller by this factor where nothing is shuffled."""
_FEWEST_OPEN = 2
_GROUPS, _ROWS, _SLICES = 1, 2, 3


@dataclass(frozen=True, slots=True)
class BlockSize:
    """The number of rows of a block, approximately, and of row groups that it takes them from, at least."""

    rows: int = BLOCK_ROWS
    groups: int = OPEN_GROUPS


def block_size(dataset: ParquetDataset, groups: Sequence[RowGroup], split_rows: Sequence[int]) -> BlockSize:
    """Return the size of blocks that fit into memory, given the split's rows in each row group."""
    used = [group for group, rows in zip(groups, split_rows, strict=True) if rows]
    rows = max(sum(group.rows for group in used), 1)
    # Lists are in memory twice while a block is put in order.
    lists = 2 * sum(group.list_bytes for group in used) // rows
    of_histories = sum(feature.inputs for feature in dataset.times if dataset.history_of_times(feature) is not None)
    row = 4 * (dataset.dense_width - of_histories + len(dataset.labels)) + 8 * len(dataset.sparse) + lists + 16
    # A power of two, so that the order stays when lists become a little longer.
    fitting = 1 << (max(BLOCK_BYTES // row, 1).bit_length() - 1)
    columns = len(dataset.dense_features) + len(dataset.labels) + len(dataset.sparse) + 1
    open_bytes = min(max((group.nbytes for group in used), default=0), columns * COLUMN_BYTES)
    return BlockSize(min(BLOCK_ROWS, fitting), min(OPEN_GROUPS, max(OPEN_BYTES // max(open_bytes, 1), _FEWEST_OPEN)))


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive rows [start, stop) of an epoch's order, and where they lie.

    They are, in this order, rows [first[i], last[i]) of the split's rows in row group groups[i], in file order.
    """

    number: int
    start: int
    stop: int
    groups: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    parts: int
    """Number of blocks that share the row groups."""


class SampleOrder:
    """Order of one split's rows.

    Row groups that hold rows of the split are divided into windows at random, so that each window has row groups of all
    parts of the files. A window of about `size.rows` rows is a block; a larger one is divided into blocks that each
    take a slice of every row group. Rows are permuted within a block. Without shuffle all rows stay in file order, and
    a block is a row group or a slice of one.
    """

    def __init__(self, group_rows: Sequence[int], size: BlockSize, shuffle: bool, seed: int) -> None:
        """Take the number of the split's rows in every row group, in file order."""
        self._group_rows = np.asarray(group_rows, np.int64)
        self._groups = np.flatnonzero(self._group_rows)
        self._shuffle = shuffle
        self._seed = seed
        self.rows = int(self._group_rows.sum())
        self._block_rows = size.rows if shuffle else max(size.rows // _IN_FILE_ORDER, 1)
        self.windows = max(min(self.rows // size.rows, self._groups.size // size.groups), 1)
        """Number of windows of a shuffled epoch."""

    def blocks(self, epoch: int) -> tuple[Block, ...]:
        """Return the blocks of an epoch; they cover rows [0, self.rows) without gaps."""
        blocks: list[Block] = []
        start = 0
        for window, groups in enumerate(self._windows(epoch)):
            sizes = self._group_rows[groups]
            parts = max(int(sizes.sum() + self._block_rows // 2) // self._block_rows, 1)
            turn = permutation(salt(self._seed, epoch, _SLICES, window), groups.size) % parts  # of remainders
            last = np.zeros_like(sizes)
            for part in range(1, parts + 1):
                first, last = last, (sizes * part + turn) // parts
                some = np.flatnonzero(first < last)
                stop = start + int((last - first).sum())
                if start < stop:
                    blocks.append(Block(len(blocks), start, stop, groups[some], first[some], last[some], parts))
                start = stop
        return tuple(blocks)

    def places(self, epoch: int, block: Block) -> NDArray[np.int64]:
        """Return the position in the block of each row, in the order of its slices: int64 [rows], a permutation."""
        size = block.stop - block.start
        if not self._shuffle:
            return np.arange(size)
        return permutation(salt(self._seed, epoch, _ROWS, block.number), size)

    def _windows(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the row groups of each window, in file order.

        Of `windows` consecutive row groups each goes to another window. So sorted data, too, is spread evenly.
        """
        count, groups = self.windows, self._groups
        if not self._shuffle:
            return [groups[number : number + 1] for number in range(groups.size)]
        window = np.concatenate(
            [permutation(salt(self._seed, epoch, _GROUPS, first), count) for first in range(0, groups.size, count)]
            or [groups]
        )[: groups.size]
        edges = np.cumsum(np.bincount(window, minlength=count))[:-1]
        return np.split(groups[np.argsort(window, kind="stable")], edges)


def training_data(
    dataset: ParquetDataset,
    groups: Sequence[RowGroup],
    split_rows: SplitRows,
    contents: Mapping[str, str],
    events: Sequence[str] = (),
) -> TrainingData:
    """Return where the samples lie, given the rows of each split in each row group and the checksum of each file.

    `events` are the checksums of the events of each history, which are content of the samples.
    Nothing else of the files is in it: a folder may be elsewhere, text may be converted again, and files without
    samples may come and go.
    """
    train_rows = split_rows.train
    by_number = isinstance(dataset.split, EverySplit | HashSplit) and not dataset.split.columns
    files: dict[str, tuple[int, list[int]]] = {}
    for group, rows in zip(groups, train_rows, strict=True):
        if rows:
            # Where the number of a row decides, its split depends on the place of its file among all rows.
            first = group.first_row - group.start if by_number else 0
            name = "/" + (group.source or group.path).lstrip("/")  # stores begin with the bucket
            files.setdefault(name, (first, []))[1].append(rows)
    if not files:
        return MADE_UP
    folder = commonpath([dirname(name) for name in files])
    order = [
        # Without shuffle the rows of a file come one after the other, in whatever groups they are.
        (relpath(name, folder), first, rows if dataset.shuffle else [sum(rows)])
        for name, (first, rows) in files.items()
    ]
    size = block_size(dataset, groups, train_rows) if dataset.shuffle else None
    digest = sha256(repr((order, size)).encode()).hexdigest()
    row_groups = sum(len(rows) for _, rows in files.values()) if dataset.shuffle else 0
    return TrainingData(
        len(files), row_groups, digest, (*(contents[path] for path in sampled(groups, split_rows)), *events)
    )


def sampled(groups: Sequence[RowGroup], split_rows: SplitRows) -> list[str]:
    """Return the paths of the files with samples to train or evaluate on, in the order of files."""
    rows = zip(groups, split_rows.train, split_rows.eval, strict=True)
    return list(dict.fromkeys(group.source or group.path for group, *counts in rows if any(counts)))
