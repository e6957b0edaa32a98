"""The order of samples: complete, pure, bounded, and mixed as far as promised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from persia_cli.data.read.order import BlockSize, SampleOrder

ROWS = st.lists(st.integers(0, 9), max_size=12)
SIZES = st.builds(BlockSize, rows=st.integers(1, 30), groups=st.integers(1, 5))


def order_of(order: SampleOrder, epoch: int, group_rows: list[int]) -> NDArray[np.int64]:
    """Return an epoch's rows by their number in file order."""
    first_row = np.concatenate([[0], np.cumsum(group_rows)]).astype(np.int64)
    rows = [np.empty(0, np.int64)]
    for block in order.blocks(epoch):
        slices = zip(block.groups, block.first, block.last, strict=True)
        read = np.concatenate([first_row[group] + np.arange(first, last) for group, first, last in slices])
        placed = np.empty_like(read)
        placed[order.places(epoch, block)] = read
        rows.append(placed)
    return np.concatenate(rows)


@given(ROWS, SIZES, st.booleans(), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_every_epoch_holds_every_row_once(
    rows: list[int], size: BlockSize, shuffle: bool, seed: int, epoch: int
) -> None:
    order = SampleOrder(rows, size, shuffle, seed)
    numbers = order_of(order, epoch, rows)
    assert order.rows == sum(rows)
    assert sorted(numbers) == list(range(order.rows))
    np.testing.assert_array_equal(numbers, order_of(SampleOrder(rows, size, shuffle, seed), epoch, rows))
    if not shuffle:
        assert numbers.tolist() == list(range(order.rows))


@given(ROWS, SIZES, st.booleans(), st.integers(0, 3))
def test_blocks_are_without_gaps_and_of_bounded_size(
    rows: list[int], size: BlockSize, shuffle: bool, epoch: int
) -> None:
    blocks = SampleOrder(rows, size, shuffle, 1).blocks(epoch)
    edges = [block.start for block in blocks] + [sum(rows)]
    assert edges[0] == 0
    assert [block.stop for block in blocks] == edges[1:]
    for block in blocks:
        assert (block.last > block.first).all()
        assert (block.last - block.first).sum() == block.stop - block.start
        # Half of a block more at most, and one row more of every group.
        assert block.stop - block.start < 1.5 * size.rows + 1 + block.groups.size


def test_seed_and_epoch_change_the_order() -> None:
    rows = [50] * 64
    size = BlockSize(rows=200, groups=2)
    orders = [
        order_of(SampleOrder(rows, size, True, seed), epoch, rows) for seed, epoch in [(1, 0), (1, 1), (2, 0), (2, 1)]
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 4


@pytest.mark.parametrize("group_rows", [[4], [1000] * 40, [10] * 4000, [40_000], [13_000, 7000, 20_000]])
def test_fewer_rows_than_a_block_are_mixed_as_one(group_rows: list[int]) -> None:
    order = SampleOrder(group_rows, BlockSize(), True, 3)
    [block] = order.blocks(0)
    assert block.stop == sum(group_rows)


@pytest.mark.parametrize("group_rows", [[10] * 400, [100] * 40, [20] * 200, [250] * 16, [1] * 4000, [1, 2, 3, 4] * 400])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_data_sorted_by_label_is_mixed(group_rows: list[int], share: float) -> None:
    order = SampleOrder(group_rows, BlockSize(rows=250, groups=16), True, 3)
    labels = np.arange(order.rows) < share * order.rows
    for epoch in range(2):
        read = labels[order_of(order, epoch, group_rows)]
        means = [read[block.start : block.stop].mean() for block in order.blocks(epoch)]
        assert len(means) > 5
        # A window may have one row group more or less of a label: one of sixteen at most.
        assert np.abs(np.array(means) - share).max() <= 1 / 16 + 0.01


def test_the_order_stays_what_it_is() -> None:
    order = SampleOrder([2, 0, 3, 1, 4, 2], BlockSize(rows=4, groups=2), True, 42)
    assert order_of(order, 1, [2, 0, 3, 1, 4, 2]).tolist() == [0, 10, 11, 1, 5, 7, 2, 6, 3, 8, 4, 9]
