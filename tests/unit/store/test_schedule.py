"""Learning-rate schedules: torch's own, as functions of the step alone."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, StepLR

from persia_cli.store.schedule import Schedule

STEPS = 40

SCHEDULES = st.builds(
    Schedule,
    kind=st.sampled_from(["constant", "step", "cosine"]),
    warmup_steps=st.integers(0, 50),
    every_steps=st.integers(1, 50),
    factor=st.floats(0.01, 1.0),
    over_steps=st.integers(1, 200),
    floor=st.floats(0.0, 1.0),
)


def torch_factors(make: Callable[[torch.optim.Optimizer], LRScheduler]) -> list[float]:
    """What torch multiplies the learning rate by at each step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    factors = []
    for _ in range(STEPS):
        factors.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return factors


def factors(schedule: Schedule) -> list[float]:
    return [schedule.at(step) for step in range(STEPS)]


@pytest.mark.parametrize("warmup", [2, 7, 40])
def test_the_warm_up_is_linear_lr(warmup: int) -> None:
    expected = torch_factors(lambda o: LinearLR(o, start_factor=1 / warmup, total_iters=warmup - 1))
    assert factors(Schedule(warmup_steps=warmup)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("every", "factor"), [(1, 0.9), (7, 0.1), (40, 0.5)])
def test_steps_are_step_lr(every: int, factor: float) -> None:
    expected = torch_factors(lambda o: StepLR(o, step_size=every, gamma=factor))
    assert factors(Schedule("step", every_steps=every, factor=factor)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("floor", [0.0, 0.25, 1.0])
def test_the_cosine_is_cosine_annealing_lr(floor: float) -> None:
    expected = torch_factors(lambda o: CosineAnnealingLR(o, T_max=STEPS, eta_min=floor))
    assert factors(Schedule("cosine", over_steps=STEPS, floor=floor)) == pytest.approx(expected, abs=1e-12)


def test_a_cosine_stays_at_its_floor() -> None:
    schedule = Schedule("cosine", over_steps=4, floor=0.1)
    assert [schedule.at(step) for step in (4, 5, 400, 10**9)] == [0.1] * 4


def test_nothing_is_changed_by_default() -> None:
    assert {Schedule().at(step) for step in (0, 1, 10**9)} == {1.0}


def test_a_warm_up_of_one_step_is_none() -> None:
    assert Schedule(warmup_steps=1).at(0) == 1.0


@given(SCHEDULES, st.integers(0, 300))
def test_what_follows_the_warm_up_begins_where_it_would_without(schedule: Schedule, step: int) -> None:
    alone = Schedule(schedule.kind, 0, schedule.every_steps, schedule.factor, schedule.over_steps, schedule.floor)
    assert schedule.at(schedule.warmup_steps + step) == alone.at(step)


@given(SCHEDULES)
def test_factors_lie_between_0_and_1_and_fall_after_the_warm_up(schedule: Schedule) -> None:
    rise = [schedule.at(step) for step in range(schedule.warmup_steps)]
    fall = [schedule.at(schedule.warmup_steps + step) for step in range(300)]
    assert rise == sorted(rise)
    assert all(0.0 < factor <= 1.0 for factor in rise)
    assert fall[0] == 1.0
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(fall))
    assert all(0.0 <= factor <= 1.0 for factor in fall)
