"""The order of samples: complete, pure, and shuffled as far as promised."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.data.parquet import SampleOrder

ROWS = st.lists(st.integers(0, 9), max_size=12)


def order_of(order: SampleOrder, epoch: int, first_row: list[int]) -> list[int]:
    """Return an epoch's rows by their number in file order."""
    rows: list[int] = []
    for block in order.blocks(epoch):
        read = [first_row[g] + i for g in block.groups for i in range(first_row[g + 1] - first_row[g])]
        placed = np.empty(len(read), np.int64)
        placed[order.places(epoch, block)] = read
        rows.extend(placed.tolist())
    return rows


@given(ROWS, st.integers(1, 4), st.booleans(), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_every_epoch_holds_every_row_once(rows: list[int], size: int, shuffle: bool, seed: int, epoch: int) -> None:
    first_row = [0, *np.cumsum(rows).tolist()]
    order = SampleOrder(rows, size, shuffle, seed)
    assert order.rows == first_row[-1]
    numbers = order_of(order, epoch, first_row)
    assert sorted(numbers) == list(range(order.rows))
    assert numbers == order_of(SampleOrder(rows, size, shuffle, seed), epoch, first_row)
    if not shuffle:
        assert numbers == list(range(order.rows))


@given(ROWS, st.integers(1, 4), st.booleans())
def test_blocks_are_without_gaps_and_hold_no_empty_group(rows: list[int], size: int, shuffle: bool) -> None:
    blocks = SampleOrder(rows, size, shuffle, 1).blocks(0)
    edges = [block.start for block in blocks] + [sum(rows)]
    assert [block.stop for block in blocks] == edges[1:]
    assert edges[0] == 0
    for block in blocks:
        assert 1 <= len(block.groups) <= (size if shuffle else 1)
        assert all(rows[group] for group in block.groups)


def test_seed_and_epoch_change_the_order_of_groups_and_of_rows() -> None:
    rows = [50] * 8
    first_row = [0, *np.cumsum(rows).tolist()]
    orders = [
        order_of(SampleOrder(rows, 4, True, seed), epoch, first_row) for seed, epoch in [(1, 0), (1, 1), (2, 0), (2, 1)]
    ]
    assert len({tuple(order) for order in orders}) == 4
    one_block = [order_of(SampleOrder([400], 4, True, 1), epoch, [0, 400]) for epoch in (0, 1)]
    assert one_block[0] != one_block[1]


def test_rows_stay_within_their_block_but_leave_their_group() -> None:
    order = SampleOrder([100] * 6, 2, True, 3)
    first_row = [100 * g for g in range(7)]
    rows = order_of(order, 0, first_row)
    for block in order.blocks(0):
        groups = {row // 100 for row in rows[block.start : block.start + 100]}
        assert groups == set(block.groups)


def test_the_order_stays_what_it_is() -> None:
    order = SampleOrder([2, 0, 3, 1], 2, True, 42)
    assert order_of(order, 1, [0, 2, 2, 5, 6]) == [5, 0, 1, 4, 2, 3]
