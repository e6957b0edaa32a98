"""Placement of keys, sizes of rows, and the states of each optimizer."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, StepLR

from persia_cli.store.layout import (
    CYCLE_START,
    INDEX_BYTES,
    MAX_FILL,
    ROWS_PER_PARTITION,
    SLOTS,
    GroupSpec,
    RowOptimizer,
    Schedule,
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
        (17, "float32", "adam", 17, 52),
        (16, "float16", "rowwise_adagrad", 8, 12),
        (17, "bfloat16", "adagrad", 9, 28),
        (16, "int8", "rowwise_adagrad", 5, 8),
        (17, "int8", "rowwise_adam", 6, 8),
        (128, "int8", "rowwise_adagrad", 33, 36),
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


def test_salts_differ_and_never_change() -> None:
    assert table_salt("C1") != table_salt("C2")
    assert table_salt("C1") == 0xE58C3570F1AC23FD


STEPS = 40


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


@pytest.mark.parametrize(
    ("schedule", "torchs"),
    [
        (Schedule(), lambda o: LinearLR(o, start_factor=1.0, total_iters=1)),
        (Schedule(warmup_steps=7), lambda o: LinearLR(o, start_factor=1 / 7, total_iters=6)),
        (Schedule("step", every_steps=1, factor=0.9), lambda o: StepLR(o, step_size=1, gamma=0.9)),
        (Schedule("step", every_steps=7, factor=0.1), lambda o: StepLR(o, step_size=7, gamma=0.1)),
        (Schedule("cosine", over_steps=STEPS, floor=0.0), lambda o: CosineAnnealingLR(o, STEPS, 0.0)),
        (Schedule("cosine", over_steps=STEPS, floor=0.25), lambda o: CosineAnnealingLR(o, STEPS, 0.25)),
        (Schedule("one_cycle", over_steps=STEPS + 1, floor=4e-6), lambda o: one_cycle(o, 4e-6)),
        (Schedule("one_cycle", over_steps=STEPS + 1, floor=0.01), lambda o: one_cycle(o, 0.01)),
    ],
)
def test_schedules_are_those_of_torch(
    schedule: Schedule, torchs: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    assert [schedule.at(step) for step in range(STEPS)] == pytest.approx(torch_factors(torchs), abs=1e-12)


def one_cycle(optimizer: torch.optim.Optimizer, floor: float) -> LRScheduler:
    last = CYCLE_START / floor
    return OneCycleLR(optimizer, 1.0, total_steps=STEPS + 1, final_div_factor=last, cycle_momentum=False)


@given(st.integers(0, 50), st.sampled_from(["constant", "step", "cosine", "one_cycle"]), st.integers(0, 300))
def test_a_schedule_begins_after_the_warm_up(warmup: int, kind: Any, step: int) -> None:
    alone = Schedule(kind, 0, 7, 0.5, 90, 0.1)
    assert replace(alone, warmup_steps=warmup).at(warmup + step) == alone.at(step)
