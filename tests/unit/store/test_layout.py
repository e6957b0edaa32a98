"""Placement of keys, sizes of rows, and the states of each optimizer."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, StepLR

from persia_cli.store.layout import (
    CYCLE_RISE,
    CYCLE_START,
    INDEX_BYTES,
    MAX_FILL,
    ROWS_PER_PARTITION,
    SLOTS,
    EmbeddingLayout,
    GroupSpec,
    OptimizerKind,
    RowOptimizer,
    Schedule,
    TableSpec,
    bytes_per_row,
    partition_owners,
    partitions_for,
    partitions_of,
    row_width,
    table_salt,
)

SGD = RowOptimizer("sgd", 0.1)


def group_of(capacity: int, partitions: int, dim: int = 4, dtype: str = "float32", kind: str = "sgd") -> GroupSpec:
    return GroupSpec(0, dim, RowOptimizer(kind, 0.1), (), capacity, partitions, dtype)


@given(st.integers(1, 300), st.integers(1, 20))
def test_servers_share_the_partitions_without_gap_or_overlap(partitions: int, servers: int) -> None:
    owned = [partitions_of(partitions, server, servers) for server in range(servers)]
    assert [partition for own in owned for partition in own] == list(range(partitions))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    owners = partition_owners(partitions, servers)
    assert owners.dtype == np.uint16
    for server, own in enumerate(owned):
        assert set(np.flatnonzero(owners == server)) == set(own)


@given(st.integers(1, 2**40), st.integers(1, 2**20))
def test_partitions_have_space_for_many_rows(capacity: int, most: int) -> None:
    partitions = partitions_for(capacity, most)
    assert 1 <= partitions <= most
    assert partitions == 1 or capacity / partitions >= ROWS_PER_PARTITION
    assert partitions == most or math.log2(partitions).is_integer()
    assert partitions == most or capacity / partitions < 2 * ROWS_PER_PARTITION


def test_partitions_of_given_capacities() -> None:
    assert [partitions_for(rows, 4096) for rows in (1, 2048, 4095, 4096, 10**6, 10**9)] == [1, 1, 1, 2, 256, 4096]
    assert partitions_for(10**9, 100) == 100


@given(st.integers(1, 2**34), st.integers(1, 2**13))
def test_a_partition_has_slots_for_its_rows_and_few_more(capacity: int, most: int) -> None:
    group = group_of(capacity, partitions_for(capacity, most))
    rows, slots = group.rows_per_partition, group.buckets * SLOTS
    assert capacity - group.partitions < rows * group.partitions <= capacity
    assert rows <= MAX_FILL * slots
    assert group.buckets == 2 or slots < rows / MAX_FILL + SLOTS


@pytest.mark.parametrize(
    ("dim", "dtype", "kind", "state_at", "width"),
    [
        (1, "float32", "sgd", 1, 4),
        (3, "float32", "adagrad", 3, 8),
        (16, "float32", "sgd", 16, 16),
        (16, "float32", "rowwise_adagrad", 16, 20),
        (16, "float32", "adam", 16, 48),
        (16, "float32", "rowwise_adam", 16, 20),
        (17, "float32", "adam", 17, 52),
        (16, "float32", "ftrl", 16, 48),
        (16, "bfloat16", "sgd", 8, 8),
        (16, "float16", "rowwise_adagrad", 8, 12),
        (17, "bfloat16", "adagrad", 9, 28),
        (1, "float16", "adam", 1, 4),
        (1024, "float32", "ftrl", 1024, 3072),
    ],
)
def test_rows_are_padded_to_16_bytes_and_cost_at_most_32_more(
    dim: int, dtype: str, kind: str, state_at: int, width: int
) -> None:
    optimizer = RowOptimizer(kind, 0.1)
    group = group_of(10, 1, dim, dtype, kind)
    assert (group.state_at, group.width, row_width(dim, dtype, optimizer)) == (state_at, width, width)
    assert width - 4 < state_at + sum(optimizer.states(dim).values()) <= width
    assert bytes_per_row(dim, dtype, optimizer) == width * 4 + INDEX_BYTES <= width * 4 + 32


def test_states_of_each_optimizer() -> None:
    assert {kind: RowOptimizer(kind, 0.1).states(5) for kind in get_args(OptimizerKind)} == {
        "sgd": {},
        "adagrad": {"adagrad_sum": 5},
        "rowwise_adagrad": {"adagrad_row_sum": 1},
        "adam": {"adam_mean": 5, "adam_square": 5},
        "rowwise_adam": {"adam_row_square": 1},
        "ftrl": {"ftrl_z": 5, "ftrl_n": 5},
    }


def test_salts_differ_and_never_change() -> None:
    assert table_salt("C1") != table_salt("C2")
    assert table_salt("C1") == 0xE58C3570F1AC23FD


def test_salts_and_tables_by_number() -> None:
    first, second = TableSpec("b", 2, 77, 0.01), TableSpec("a", 0, 5, 0.01)
    layout = EmbeddingLayout(
        (GroupSpec(0, 4, SGD, (first,), 10, 1), GroupSpec(1, 8, SGD, (second,), 10, 1)), (), seed=0
    )
    assert [table.name for table in layout.tables()] == ["a", "b"]
    assert layout.salts().tolist() == [5, 0, 77]


def test_groups_are_numbered_by_their_place() -> None:
    with pytest.raises(ValueError, match="numbered from 0"):
        EmbeddingLayout((GroupSpec(1, 4, SGD, (), 10, 1),), (), 0)


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
    """Torch's factor of the learning rate at each step."""
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


@pytest.mark.parametrize("floor", [4e-6, 0.01])
def test_one_cycle_is_one_cycle_lr(floor: float) -> None:
    cycle = partial(
        OneCycleLR, max_lr=1.0, total_steps=STEPS + 1, final_div_factor=CYCLE_START / floor, cycle_momentum=False
    )
    schedule = Schedule("one_cycle", over_steps=STEPS + 1, floor=floor)
    assert factors(schedule) == pytest.approx(torch_factors(cycle), abs=1e-12)
    assert schedule.at(STEPS) == schedule.at(10**9) == pytest.approx(floor)


@given(st.integers(0, 30), st.integers(1, 12), st.floats(0.0, 1.0))
def test_one_cycle_of_any_length_rises_then_falls(step: int, over: int, floor: float) -> None:
    schedule = Schedule("one_cycle", over_steps=over, floor=floor)
    assert min(CYCLE_START, floor) - 1e-12 <= schedule.at(step) <= 1 + 1e-12
    if step + 1 < CYCLE_RISE * over - 1:
        assert schedule.at(step) <= schedule.at(step + 1) + 1e-12
    if step >= CYCLE_RISE * over - 1:
        assert schedule.at(step + 1) <= schedule.at(step) + 1e-12
    if step >= over - 1:
        assert schedule.at(step) == pytest.approx(floor)


def test_a_cosine_stays_at_its_floor() -> None:
    schedule = Schedule("cosine", over_steps=4, floor=0.1)
    assert [schedule.at(step) for step in (4, 5, 400, 10**9)] == [0.1] * 4


def test_nothing_is_changed_by_default() -> None:
    assert {Schedule().at(step) for step in (0, 1, 10**9)} == {1.0}


def test_a_warm_up_of_one_step_is_none() -> None:
    assert Schedule(warmup_steps=1).at(0) == 1.0


@given(SCHEDULES, st.integers(0, 300))
def test_the_schedule_after_the_warm_up_begins_where_it_would_without(schedule: Schedule, step: int) -> None:
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
