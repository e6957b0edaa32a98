"""The gate of synchronous training: a look-up sees every update of the steps before its own."""

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.gate import StepGate


def test_an_update_waits_for_the_other_ranks_and_comes_out_in_their_order():
    gate = StepGate[str, str](3)
    gate.hold_update(0, 2, "c")
    gate.hold_update(1, 0, "early")
    gate.hold_update(0, 0, "a")
    assert gate.complete(-1) is None
    gate.hold_update(0, 0, "a again")
    assert gate.complete(-1) is None
    gate.hold_update(0, 1, "b")
    assert gate.complete(-1) == ["a again", "b", "c"]
    assert gate.complete(-1) is None
    assert gate.complete(0) is None


def test_look_ups_are_let_through_once_and_in_order():
    gate = StepGate[str, str](2)
    for step, rank in [(3, 0), (2, 1), (2, 0), (4, 1)]:
        gate.hold_look_up(step, rank, f"{step}/{rank}")
    gate.hold_look_up(3, 0, "3/0 again")
    assert list(gate.released(0)) == []
    assert list(gate.released(1)) == ["2/0", "2/1"]
    assert list(gate.released(1)) == []
    assert list(gate.released(3)) == ["3/0 again", "4/1"]


@given(st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_step_is_applied_once_whatever_the_order_of_arrival(ranks, steps, moments):
    gate = StepGate[tuple[int, int], tuple[int, int]](ranks)
    arriving = [(step, rank) for step in range(steps) for rank in range(ranks)] * 2
    moments.shuffle(arriving)
    applied, seen = -1, []
    for step, rank in arriving:
        if step <= applied:
            continue
        gate.hold_update(step, rank, (step, rank))
        while (updates := gate.complete(applied)) is not None:
            applied += 1
            seen += updates
    assert seen == [(step, rank) for step in range(steps) for rank in range(ranks)]
