"""Finished steps, permitted steps, and the look-ups that the gate of sync mode holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.watermarks import Permits, StepGate, Window
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


def test_a_step_too_far_ahead_is_refused_and_changes_nothing():
    window = Window(watermark=4, limit=10)
    assert window.mark(14)
    for attempt in (window.mark, window.check):
        with pytest.raises(WireError, match="step 15 is more than 10 steps ahead of the last finished step 4"):
            attempt(15)
    assert not window.done(15)
    window.check(3)
    assert not window.mark(3)


@given(st.integers(1, 5), st.integers(0, 30), st.randoms(use_true_random=False))
def test_steps_start_in_order_and_never_further_ahead_than_the_bound(bound, end, moments):
    permits = Permits(bound, end=end)
    started: list[int] = []
    finished: set[int] = set()
    while len(finished) < end:
        while (step := permits.next_step()) is not None:
            assert step - (permits.finished.watermark + 1) < bound
            started.append(step)
        assert started == list(range(len(started)))
        assert not permits.drained
        in_flight = [step for step in started if step not in finished]
        assert 0 < len(in_flight) <= bound
        done = moments.choice(in_flight)
        finished.add(done)
        permits.give_back(done)
    assert permits.next_step() is None
    assert permits.drained
    assert started == list(range(end))


def test_a_step_may_start_once_the_gradients_that_it_depends_on_are_sent():
    """Servers hold its look-up until they have applied them. Credit and the end of a phase count applied steps."""
    permits = Permits(2, end=4)
    assert [permits.next_step() for _ in range(3)] == [0, 1, None]
    permits.send(0)
    assert [permits.next_step() for _ in range(2)] == [2, None]
    assert permits.credit(10) == 10
    for step in range(1, 4):
        permits.send(step)
    assert permits.next_step() == 3
    assert not permits.drained


def test_no_phase_ends_before_a_finished_step():
    permits = Permits(4, end=9)
    for step in range(3):
        assert permits.next_step() == step
        permits.give_back(step)
    permits.begin(3)
    assert permits.drained
    with pytest.raises(AssertionError):
        permits.begin(2)


def test_credit_counts_from_the_last_step_that_all_before_are_finished():
    permits = Permits(4, end=9)
    for _ in range(4):
        permits.next_step()
    assert permits.credit(10) == 10
    permits.give_back(1)
    assert permits.credit(10) == 10
    permits.give_back(0)
    assert permits.credit(10) == 12


def test_look_ups_are_let_through_once_and_in_order():
    gate, last = StepGate[str, str](2), "0"
    for step, rank in [(3, 0), (2, 1), (2, 0), (4, 1)]:
        gate.defer_look_up(step, rank, f"{step}/{rank}")
    gate.defer_look_up(3, 0, "3/0 again")
    assert list(gate.released(lambda held: held < last)) == []
    last = "3"
    assert list(gate.released(lambda held: held < last)) == ["2/0", "2/1"]
    assert list(gate.released(lambda held: held < last)) == []
    last = "5"
    assert list(gate.released(lambda held: held < last)) == ["3/0 again", "4/1"]


@given(st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_step_is_applied_once_in_any_order_of_arrival(ranks, steps, moments):
    gate = StepGate[tuple[int, int], tuple[int, int]](ranks)
    arriving = [(step, rank) for step in range(steps) for rank in range(ranks)] * 2
    moments.shuffle(arriving)
    applied, seen = -1, []
    for step, rank in arriving:
        if step <= applied:
            continue
        gate.defer_update(step, rank, (step, rank))
        while (updates := gate.complete(applied)) is not None:
            applied += 1
            seen += updates
    assert seen == [(step, rank) for step in range(steps) for rank in range(ranks)]


def test_steps_that_are_skipped_count_as_done():
    window = Window(watermark=2)
    for step in (5, 7, 8, 12):
        window.mark(step)
    assert window.skip(6)
    assert (window.watermark, window.above) == (8, {12})
    assert not window.skip(8)
    assert not window.skip(3)
    assert window.skip(20)
    assert (window.watermark, window.above) == (20, set())
