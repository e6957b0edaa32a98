"""Every row of every pass occurs exactly once, for any batch size and ranks; and the batches of a job."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.position import EVAL, TRAIN, JobBatches, StepGrid, work_items

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
def test_only_the_last_step_of_a_pass_is_short_and_others_are_equal(grid):
    for step in range(grid.steps - 1):
        _, first, last = grid.locate(step)
        assert last - first == grid.batch_size
        sizes = {stop - start for start, stop in (grid.rows_of(step, rank) for rank in range(grid.world_size))}
        assert sizes == {grid.batch_size // grid.world_size}


@given(grids, st.integers(0, 1000))
def test_samples_before_a_step_are_those_of_the_steps_before(grid, step):
    _, first, last = grid.locate(step)
    assert grid.samples_before(step + 1) - grid.samples_before(step) == last - first


@given(st.integers(0, 50), st.integers(0, 200), st.integers(1, 30))
def test_work_items_deal_out_every_step_once_in_order(first, count, size):
    dealt = list[int]()
    for item in work_items(first, first + count, size):
        assert item[0] < item[1] <= item[0] + size
        dealt += range(*item)
    assert dealt == list(range(first, first + count))


JOB = JobBatches({TRAIN: StepGrid(20, 8, 2), EVAL: StepGrid(9, 8, 2)}, steps=5, world_size=2)


def test_batches_have_the_size_of_the_ranks_share() -> None:
    assert [[JOB.size(TRAIN, step, rank) for rank in range(2)] for step in range(5)] == [
        [4, 4], [4, 4], [4, 0], [4, 4], [4, 4],
    ]  # fmt: skip
    assert [[JOB.size(EVAL, step, rank) for rank in range(2)] for step in (0, 1)] == [[4, 4], [1, 0]]
