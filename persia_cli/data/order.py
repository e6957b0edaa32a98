"""The order of samples: a pure function of seed, epoch, files and shuffle block."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.data.hashing import permutation, salt

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
