"""Permits: the bound on steps between look-up and applied update holds, and no step is lost or taken twice."""

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.credit import Permits


@given(st.integers(1, 5), st.integers(0, 30), st.randoms(use_true_random=False))
def test_steps_start_in_order_and_never_further_ahead_than_the_bound(bound, end, moments):
    permits = Permits(bound, end=end)
    started: list[int] = []
    finished: set[int] = set()
    while len(finished) < end:
        while (step := permits.take()) is not None:
            assert step - (permits.finished.watermark + 1) < bound
            started.append(step)
        assert started == list(range(len(started)))
        assert not permits.drained
        in_flight = [step for step in started if step not in finished]
        assert 0 < len(in_flight) <= bound
        done = moments.choice(in_flight)
        finished.add(done)
        permits.give_back(done)
    assert permits.take() is None
    assert permits.drained
    assert started == list(range(end))


def test_a_bound_of_one_starts_a_step_when_the_one_before_is_applied():
    permits = Permits(1, end=3)
    assert (permits.take(), permits.take()) == (0, None)
    permits.give_back(0)
    permits.give_back(0)
    assert (permits.take(), permits.take()) == (1, None)


def test_credit_counts_from_the_last_step_that_all_before_are_finished():
    permits = Permits(4, end=9)
    for _ in range(4):
        permits.take()
    assert permits.credit(10) == 10
    permits.give_back(1)
    assert permits.credit(10) == 10
    permits.give_back(0)
    assert permits.credit(10) == 12


def test_a_rank_goes_on_when_the_next_phase_begins():
    permits = Permits(2, end=1)
    assert (permits.take(), permits.take()) == (0, None)
    permits.give_back(0)
    assert permits.drained
    permits.end = 2
    assert not permits.drained
    assert permits.take() == 1
