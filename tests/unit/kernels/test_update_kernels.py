"""Optimizer kernels against their plain twins, to the bit, and the mean of random rounding."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.store.layout import OptimizerKind, RowOptimizer, Schedule
from persia_cli.store.shard import Shard
from tests import naive, naive_optimizers, naive_store
from tests.support.shards import BY_KIND, OPTIMIZERS, SEED, TABLES, arrays, compare, find_rows, layout_of

DTYPES = ["float32", "bfloat16", "float16", "int8"]
PLAIN = [
    replace(each, weight_decay=0.0, l2=each.l2 if each.kind == "ftrl" else 0.0, clip_norm=None, weight_bound=None)
    for each in OPTIMIZERS[1:]
]
SETTINGS = st.fixed_dictionaries(
    {
        "l2": st.sampled_from([0.0, 0.1, 1e-6]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "clip_norm": st.sampled_from([None, 1e-3, 2.0]),
        "weight_bound": st.sampled_from([None, 0.5]),
    }
)
VALUES = st.sampled_from([0.0, -0.0, 1e-45, -1e-30, 1e-10, 1.0, -3.5, 1e4, np.nan, np.inf]) | st.floats(
    -1e4, 1e4, width=32
)
DIMS = st.sampled_from([1, 3, 15, 16, 17, 32, 40, 64])


def pair(dim, optimizer, dtype="float32", rows=3, **settings):
    """A shard, its twin and the names of their rows."""
    layout = layout_of(dim, 100, 1, optimizer, TABLES[1:2], dtype=dtype, **settings)
    shard, twin = Shard(layout, 0, 1), naive_store.Store(layout)
    names = [(naive.mix(id_ ^ TABLES[1].salt), TABLES[1].number) for id_ in range(rows)]
    shard.look_up(0, *arrays(names), 0, create=True)
    twin.look_up(names, 0, create=True)
    return shard, twin, names


def test_every_kind_has_settings_in_these_tests():
    assert set(BY_KIND) == set(get_args(OptimizerKind)), "add settings of the kind to tests/support/shards.py"


@settings(max_examples=50)
@given(st.sampled_from(PLAIN), SETTINGS | st.just({}), DIMS, st.sampled_from(DTYPES), st.data())
def test_a_few_steps_equal_the_naive_twin_exactly(optimizer, extras, dim, dtype, data):
    shard, twin, names = pair(dim, replace(optimizer, **extras), dtype)
    for step in data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=3)):
        seed = data.draw(st.integers(0, 2**32))
        gradients = np.random.default_rng(seed).standard_normal((3, dim)).astype(np.float32)
        for row, column, value in data.draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, dim - 1), VALUES), max_size=4)
        ):
            gradients[row, column] = value
        shard.update(0, *arrays(names), gradients, step)
        twin.update(names, gradients, step)
        compare(shard, twin)


@pytest.mark.parametrize("optimizer", PLAIN, ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("dim", [1, 16, 128, 1024])
@pytest.mark.parametrize("count", [0, 300])
def test_batches_of_any_size_equal_the_naive_twin(optimizer, dim, count):
    shard, twin, names = pair(dim, optimizer, rows=min(count, 40))
    unknown = [(2**63 + key, TABLES[1].number) for key in range(count - len(names))]
    names = names + unknown
    gradients = np.random.default_rng(1).standard_normal((count, dim)).astype(np.float32)
    shard.update(0, *arrays(names), gradients, 7)
    twin.update(names, gradients, 7)
    compare(shard, twin)


@pytest.mark.parametrize("size", [1.8e19, 1.9e19, 3e38])
@pytest.mark.parametrize("optimizer", PLAIN, ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("dim", [16, 17])
def test_huge_finite_gradients_make_no_weight_nan(optimizer, size, dim):
    """Those whose squares are infinite are refused and counted; others leave finite states."""
    shard, twin, names = pair(dim, replace(optimizer, lr=1e-3))
    gradients = np.full((3, dim), size, np.float32)
    for step in range(4):
        shard.update(0, *arrays(names), gradients, step)
        with np.errstate(over="ignore"):
            twin.update(names, gradients, step)
    shard.update(0, *arrays(names), np.ones((3, dim), np.float32), 4)
    twin.update(names, np.ones((3, dim), np.float32), 4)
    assert not np.isnan(shard.values(0, *arrays(names))).any()
    assert shard.counters()["item"].gradients_refused == (12 if size > 2.0**64 else 0)
    compare(shard, twin)


SCHEDULES = [Schedule("one_cycle", over_steps=20), Schedule("step", 3, 2, 0.5)]
UNDECAYED = [
    *(RowOptimizer(kind, lr=0.05) for kind in get_args(OptimizerKind) if kind != "adam"),
    RowOptimizer("adagrad", lr=0.05, initial_accumulator_value=0.1, clip_norm=0.5, weight_bound=1.0),
    RowOptimizer("ftrl", lr=0.05, l1=1.0),
    RowOptimizer("ftrl", lr=0.05, l1=1e-3, l2=1.0, initial_accumulator_value=0.1, clip_norm=0.5),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
@pytest.mark.parametrize("optimizer", UNDECAYED, ids=lambda optimizer: f"{optimizer.kind}-{optimizer.l1}")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_gradient_of_zero_moves_no_weight_under_any_schedule(optimizer, schedule, dtype, steps):
    """Neither of new rows nor of rows that have had gradients; Adam moves by momentum, so only its new rows stay."""
    shard, _, names = pair(17, replace(optimizer, schedule=schedule), dtype, 8)
    rng = np.random.default_rng(0)
    for step in range(steps):
        shard.update(0, *arrays(names), rng.standard_normal((8, 17)).astype(np.float32), step)
    before = shard.values(0, *arrays(names))
    for step in range(steps, steps + 50):
        shard.update(0, *arrays(names), np.zeros((8, 17), np.float32), step)
        np.testing.assert_array_equal(shard.values(0, *arrays(names)), before)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rounding_is_a_function_of_seed_key_and_step_alone(dtype):
    optimizer = RowOptimizer("sgd", lr=0.1)
    gradients = np.random.default_rng(0).standard_normal((8, 17)).astype(np.float32)

    def after(seed=SEED, step=4, order=slice(None), batches=1):
        """Rows after one update of each, for any seed of their initial values."""
        shard, _, names = pair(17, optimizer, dtype, 8, seed=seed)
        store = shard.stores[0]
        rows = find_rows(store, *arrays(names))
        store.write_rows(rows, {"embedding": naive.initial_rows(1, 2, range(8), 17, 1.0)})
        places = np.arange(8)[order]
        for part in range(batches):
            own = places[part::batches]
            shard.update(0, *arrays([names[place] for place in own]), gradients[own], step)
        return shard.values(0, *arrays(names)).tobytes()

    assert after() == after() == after(order=slice(None, None, -1)) == after(batches=3)
    assert after() != after(step=5)
    assert after() != after(seed=SEED + 1)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rows_and_columns_are_rounded_independently(dtype):
    shard, _, names = pair(65, RowOptimizer("sgd", lr=1.0), dtype, 90)
    store = shard.stores[0]
    rows = find_rows(store, *arrays(names))
    begin, gradients = np.ones((90, 65), np.float32), np.zeros((90, 65), np.float32)
    begin[:, 64] = 127 / 64  # the greatest value of a row, which decides on the steps of int8
    store.write_rows(rows, {"embedding": begin})
    half_a_step = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-7}[dtype]
    gradients[:, :64] = -half_a_step
    shard.update(0, *arrays(names), gradients, 0)
    up = shard.values(0, *arrays(names))[:, :64] > 1
    assert abs(up.mean() - 0.5) < 4 * 0.5 / np.sqrt(up.size)
    for one in (up, up.T):
        correlation = np.corrcoef(one.astype(float)) - np.eye(len(one))
        assert np.abs(correlation).max() < 5.5 / np.sqrt(one.shape[1])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("start", [1.0, -0.3, 3e-6])
def test_steps_too_small_for_rounding_to_nearest_add_up(dtype, start):
    """2000 steps of a 50th of the spacing: the sum of their roundings is off by a few standard errors at most."""
    steps, count, dim = 2000, 8, 17
    shard, _, names = pair(dim, RowOptimizer("sgd", lr=1.0), dtype, count)
    store = shard.stores[0]
    rows = find_rows(store, *arrays(names))
    begin = np.full((count, dim), start, np.float32)
    begin[:, 16] = 4 * start  # the greatest value of a row, which decides on the steps of int8
    begin = naive_optimizers.rounded(begin, dtype)
    store.write_rows(rows, {"embedding": begin})
    bits = {"bfloat16": (8, 2.0**-133), "float16": (11, 2.0**-24)}
    spacing = 4 * abs(start) / 127 if dtype == "int8" else float(naive.spacing(start, *bits[dtype]))
    gradients = np.full((count, dim), -spacing / 50, np.float32)
    gradients[:, 16] = 0.0
    assert naive_optimizers.rounded(begin - gradients, dtype).tolist() == begin.tolist()
    for step in range(steps):
        shard.update(0, *arrays(names), gradients, step)
    moved = ((shard.values(0, *arrays(names)).astype(np.float64) - begin) / spacing)[:, :16]
    # Each step is a draw of a spacing with probability 1/50 (greater where the value grows past a power of two).
    deviation = np.sqrt(steps / 50) * 2
    assert np.abs(moved - steps / 50).max() < 5 * deviation
    assert abs(moved.mean() - steps / 50) < 4 * deviation / np.sqrt(moved.size)
