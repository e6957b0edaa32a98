"""The gate of synchronous training: whole steps, in the order of ranks; look-ups only after the step before theirs."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.gate import StepGate

RANKS_AND_STEPS = st.tuples(st.integers(1, 5), st.integers(1, 8))


@given(RANKS_AND_STEPS, st.randoms(use_true_random=False))
def test_steps_are_completed_in_order_whatever_comes_first(sizes: tuple[int, int], random: Random) -> None:
    ranks, steps = sizes
    gate: StepGate[None, tuple[int, int]] = StepGate(ranks)
    coming = [(step, rank) for step in range(steps) for rank in range(ranks)]
    random.shuffle(coming)
    applied, held = -1, set()
    for step, rank in coming:
        gate.hold_update(step, rank, (step, rank))
        held.add((step, rank))
        while (updates := gate.complete(applied)) is not None:
            assert updates == [(applied + 1, rank) for rank in range(ranks)]
            assert held >= set(updates)
            applied += 1
        assert not held >= {(applied + 1, rank) for rank in range(ranks)}
    assert applied == steps - 1


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 3))), st.randoms(use_true_random=False))
def test_look_ups_wait_for_the_step_before_theirs(keys: set[tuple[int, int]], random: Random) -> None:
    gate: StepGate[tuple[int, int], None] = StepGate(4)
    coming = sorted(keys)
    random.shuffle(coming)
    for step, rank in coming:
        gate.hold_look_up(step, rank, (step, rank))
    answered = []
    for applied in range(-1, 9):
        now = list(gate.released(applied))
        assert now == sorted(key for key in keys if key[0] == applied + 1 or (applied == -1 and key[0] == 0))
        answered += now
    assert answered == sorted(keys)


def test_a_step_waits_for_its_last_rank() -> None:
    gate: StepGate[str, str] = StepGate(2)
    assert gate.complete(-1) is None
    gate.hold_update(0, 1, "late")
    assert gate.complete(-1) is None
    gate.hold_update(0, 0, "early")
    assert gate.complete(-1) == ["early", "late"]
    assert gate.complete(-1) is None


def test_later_steps_do_not_complete_before_the_next_one() -> None:
    gate: StepGate[str, str] = StepGate(1)
    gate.hold_update(2, 0, "two")
    assert gate.complete(0) is None
    assert gate.complete(1) == ["two"]


def test_what_is_asked_again_replaces_what_is_held() -> None:
    gate: StepGate[str, str] = StepGate(2)
    gate.hold_look_up(1, 0, "first")
    gate.hold_look_up(1, 0, "again")
    assert list(gate.released(-1)) == []
    assert list(gate.released(0)) == ["again"]
    assert list(gate.released(0)) == []
    gate.hold_update(0, 0, "first")
    gate.hold_update(0, 0, "again")
    assert gate.complete(-1) is None
    gate.hold_update(0, 1, "other")
    assert gate.complete(-1) == ["again", "other"]


def test_look_ups_are_released_even_if_nobody_takes_them_one_by_one() -> None:
    gate: StepGate[str, str] = StepGate(1)
    gate.hold_look_up(0, 0, "a")
    gate.released(-1)
    assert list(gate.released(-1)) == []
