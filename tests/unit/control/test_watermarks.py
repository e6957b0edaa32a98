"""Which steps are done: whatever order they come in, and however often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.watermarks import Watermarks, Window
from persia_cli.errors import WireError


@given(st.lists(st.integers(0, 60)))
def test_a_window_remembers_exactly_what_was_marked(steps):
    window, marked = Window(), set()
    for step in steps:
        assert window.mark(step) == (step not in marked)
        marked.add(step)
        assert [window.done(other) for other in range(70)] == [other in marked for other in range(70)]
        assert window.watermark == next(other for other in range(70) if other not in marked) - 1
        assert window.above == {other for other in marked if other > window.watermark}


def test_what_comes_in_order_leaves_nothing_to_remember():
    window = Window()
    for step in range(10_000):
        window.mark(step)
    assert (window.watermark, window.above) == (9_999, set())


def test_a_step_too_far_ahead_is_refused_and_changes_nothing():
    window = Window(watermark=4, limit=10)
    assert window.mark(14)
    for attempt in (window.mark, window.check):
        with pytest.raises(WireError, match="step 15 is more than 10 steps ahead of the last finished step 4"):
            attempt(15)
    assert not window.done(15)
    window.check(3)
    assert not window.mark(3)


def test_the_lowest_watermark_is_that_of_the_slowest_rank():
    marks = Watermarks(ranks=2, last_step=9)
    assert marks.lowest == 9
    marks.of(0, 0).mark(10)
    assert marks.lowest == 9
    marks.of(1, 0).mark(10)
    assert marks.lowest == 10


@pytest.mark.parametrize(
    ("rank", "generation", "words"),
    [(2, 0, "no rank 2 in a world of 2"), (-1, 0, "no rank -1"), (0, 1, "generation 1 is over"), (0, -1, "generation")],
)
def test_strange_ranks_and_generations_are_refused(rank, generation, words):
    with pytest.raises(WireError, match=words):
        Watermarks(ranks=2).of(rank, generation)
