"""The data position: steps and ranks share every pass's rows, and work items cover the steps."""

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.position import StepGrid, WorkItems

GRIDS = st.builds(
    lambda rows, per_rank, ranks: StepGrid(rows, per_rank * ranks, ranks),
    st.integers(1, 500),
    st.integers(1, 40),
    st.integers(1, 6),
)


@given(GRIDS, st.integers(0, 3))
def test_steps_and_ranks_share_every_row_of_a_pass_once(grid: StepGrid, epoch: int) -> None:
    rows: list[int] = []
    for step in range(epoch * grid.steps, (epoch + 1) * grid.steps):
        found, start, stop = grid.locate(step)
        assert found == epoch
        assert 0 < stop - start <= grid.batch_size
        for rank in range(grid.world_size):
            first, last = grid.share(step, rank)
            assert 0 <= last - first <= grid.batch_size // grid.world_size
            rows += range(start + first, start + last)
    assert rows == list(range(grid.rows))


@given(GRIDS, st.data())
def test_only_the_last_step_of_a_pass_is_short(grid: StepGrid, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, 4 * grid.steps))
    _, start, stop = grid.locate(step)
    if (step + 1) % grid.steps:
        assert stop - start == grid.batch_size
        shares = [grid.share(step, rank) for rank in range(grid.world_size)]
        assert len({last - first for first, last in shares}) == 1
    else:
        assert stop == grid.rows


@given(GRIDS, st.data())
def test_samples_before_a_step_are_those_of_all_steps_before_it(grid: StepGrid, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, 3 * grid.steps))
    samples = 0
    for earlier in range(step):
        _, start, stop = grid.locate(earlier)
        samples += stop - start
    assert grid.samples_before(step) == samples


def test_the_rows_of_a_step_do_not_depend_on_the_ranks() -> None:
    grids = [StepGrid(1000, 48, ranks) for ranks in (1, 2, 3, 4)]
    for step in range(50):
        assert len({grid.locate(step) for grid in grids}) == 1


def test_a_rank_of_a_short_step_keeps_its_place_or_gets_nothing() -> None:
    grid = StepGrid(rows=15, batch_size=8, world_size=4)
    assert grid.steps == 2
    assert [grid.share(1, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert [StepGrid(11, 8, 4).share(1, rank) for rank in range(4)] == [(0, 2), (2, 3), (3, 3), (3, 3)]


def test_an_empty_split_has_no_steps() -> None:
    assert StepGrid(0, 8, 2).steps == 0


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 50))
def test_work_items_cover_the_range_once_in_order(first: int, steps: int, size: int) -> None:
    items = WorkItems(first, first + steps, size)
    taken = list(iter(items.take, None))
    assert [step for start, stop in taken for step in range(start, stop)] == list(range(first, first + steps))
    assert all(0 < stop - start <= size for start, stop in taken)
    assert len(taken) == -(-steps // size)
    assert items.take() is None
