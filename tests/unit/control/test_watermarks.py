"""What is done: a window is a set of steps kept small, one for each rank, of one generation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.watermarks import Watermarks, Window
from persia_cli.errors import WireError


@given(st.integers(-1, 5), st.lists(st.integers(-3, 40)))
def test_a_window_is_a_set_of_steps(start: int, marks: list[int]) -> None:
    window, model = Window(watermark=start), set(range(-3, start + 1))
    for step in marks:
        assert window.mark(step) == (step not in model)
        model.add(step)
        assert {step for step in range(-3, 50) if window.done(step)} == model
        assert set(range(-3, window.watermark + 1)) <= model
        assert window.watermark + 1 not in model
        assert window.above == {step for step in model if step > window.watermark}


@given(st.permutations(range(30)))
def test_a_window_ends_empty_whatever_the_order(order: list[int]) -> None:
    window = Window()
    assert all(window.mark(step) for step in order)
    assert (window.watermark, window.above) == (29, set())


@given(st.integers(1, 10), st.lists(st.integers(0, 60), max_size=100))
def test_a_window_never_remembers_more_than_its_limit(limit: int, marks: list[int]) -> None:
    window = Window(limit=limit)
    for step in marks:
        ahead = step - window.watermark > limit
        before = (window.watermark, set(window.above))
        if ahead:
            with pytest.raises(WireError, match=f"more than {limit} steps ahead of the last finished step"):
                window.mark(step)
            assert (window.watermark, window.above) == before
        else:
            window.mark(step)
        assert len(window.above) < limit


def test_checking_changes_nothing() -> None:
    window = Window(limit=2)
    window.check(1)
    with pytest.raises(WireError, match="step 2 is more than 2 steps ahead of the last finished step -1"):
        window.check(2)
    assert window == Window(limit=2)


def test_each_rank_has_a_window_and_the_lowest_counts() -> None:
    marks = Watermarks(ranks=3, last_step=9)
    assert marks.lowest == 9
    for rank, step in ((0, 10), (0, 11), (2, 10), (1, 11)):
        assert marks.of(rank, 0).mark(step)
    assert [marks.of(rank, 0).watermark for rank in range(3)] == [11, 9, 10]
    assert marks.lowest == 9
    assert marks.of(1, 0).mark(10)
    assert marks.lowest == 10


@pytest.mark.parametrize("rank", [-1, 2])
def test_unknown_ranks_are_refused(rank: int) -> None:
    with pytest.raises(WireError, match=f"no rank {rank} in a world of 2"):
        Watermarks(ranks=2).of(rank, 0)


@pytest.mark.parametrize("generation", [3, 5])
def test_other_generations_are_refused(generation: int) -> None:
    with pytest.raises(WireError, match=f"generation {generation} is over; this replica is at 4"):
        Watermarks(ranks=1, generation=4).of(0, generation)
