"""The data position: every row of every pass exactly once, whatever the batch size and the number of ranks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.position import StepGrid, WorkItems

grids = st.builds(
    lambda rows, per_rank, ranks: StepGrid(rows, per_rank * ranks, ranks),
    st.integers(1, 400),
    st.integers(1, 40),
    st.integers(1, 5),
)


@given(grids, st.integers(1, 3))
def test_ranks_share_every_row_of_every_pass_in_order(grid, passes):
    seen = []
    for step in range(passes * grid.steps):
        epoch, first, last = grid.locate(step)
        parts = [grid.rows_of(step, rank) for rank in range(grid.world_size)]
        assert parts[0][0] == 0
        assert parts[-1][1] == last - first
        assert all(before[1] == after[0] for before, after in pairwise(parts))
        seen += [(epoch, row) for row in range(first, last)]
    assert seen == [(epoch, row) for epoch in range(passes) for row in range(grid.rows)]


@given(grids)
def test_only_the_last_step_of_a_pass_is_short_and_shares_of_the_others_are_equal(grid):
    for step in range(grid.steps - 1):
        _, first, last = grid.locate(step)
        assert last - first == grid.batch_size
        sizes = {stop - start for start, stop in (grid.rows_of(step, rank) for rank in range(grid.world_size))}
        assert sizes == {grid.batch_size // grid.world_size}


@given(grids, st.integers(0, 1000))
def test_samples_before_a_step_are_those_of_the_steps_before(grid, step):
    _, first, last = grid.locate(step)
    assert grid.samples_before(step + 1) - grid.samples_before(step) == last - first


def test_a_rank_may_get_nothing_of_a_short_step():
    grid = StepGrid(rows=9, batch_size=8, world_size=4)
    assert grid.locate(1) == (0, 8, 9)
    assert [grid.rows_of(1, rank) for rank in range(4)] == [(0, 1), (1, 1), (1, 1), (1, 1)]


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 30))
def test_work_items_deal_out_every_step_once_in_order(first, count, size):
    items = WorkItems(first, first + count, size)
    dealt = []
    while (item := items.take()) is not None:
        assert item[0] < item[1] <= item[0] + size
        dealt += range(*item)
    assert dealt == list(range(first, first + count))
    assert items.take() is None
