"""Permits: steps start in order and never more than the bound run ahead, however updates come back."""

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.credit import Permits


@given(st.integers(1, 6), st.integers(0, 40), st.data())
def test_permits_keep_the_bound_and_finish_in_any_order(bound: int, steps: int, data: st.DataObject) -> None:
    permits = Permits(bound, end=steps)
    taken: list[int] = []
    in_flight: list[int] = []
    while not permits.drained:
        while (step := permits.take()) is not None:
            taken.append(step)
            in_flight.append(step)
            assert step - permits.finished.watermark <= bound
            assert len(in_flight) <= bound
        assert in_flight, "nothing is in flight and nothing may start: this never ends"
        back = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
        permits.give_back(back)
    assert taken == list(range(steps))
    assert in_flight == []
    assert permits.take() is None


@given(st.integers(1, 8))
def test_as_many_steps_as_the_bound_start_at_once(bound: int) -> None:
    permits = Permits(bound, end=100)
    assert list(iter(permits.take, None)) == list(range(bound))


def test_a_late_step_holds_back_the_ones_after_it() -> None:
    permits = Permits(bound=2, end=10)
    assert [permits.take(), permits.take(), permits.take()] == [0, 1, None]
    permits.give_back(1)
    assert permits.take() is None
    permits.give_back(0)
    assert [permits.take(), permits.take(), permits.take()] == [2, 3, None]


def test_a_permit_given_back_twice_counts_once() -> None:
    permits = Permits(bound=1, end=10)
    assert permits.take() == 0
    permits.give_back(0)
    permits.give_back(0)
    assert [permits.take(), permits.take()] == [1, None]


def test_steps_go_on_where_they_stopped_once_the_end_is_moved() -> None:
    permits = Permits(bound=3)
    assert permits.drained
    assert permits.take() is None
    permits.end = 2
    assert not permits.drained
    assert list(iter(permits.take, None)) == [0, 1]
    permits.give_back(1)
    assert not permits.drained
    permits.give_back(0)
    assert permits.drained
    permits.end = 3
    assert permits.take() == 2


def test_credit_follows_the_last_step_that_all_before_are_finished_with() -> None:
    permits = Permits(bound=4, end=10)
    assert permits.credit(6) == 6
    assert list(iter(permits.take, None)) == [0, 1, 2, 3]
    permits.give_back(1)
    assert permits.credit(6) == 6
    permits.give_back(0)
    assert permits.credit(6) == 8
