"""Shards that fill up: nothing is refused before load 0.9, and what is evicted, moved or refused at capacity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.store.layout import partition_owners, partitions_for
from persia_cli.store.shard import Shard
from persia_cli.wire.message import TableTotals
from tests import naive_store
from tests.support.shards import SGD, TABLES, arrays, colliding, compare, find_rows, layout_of


@pytest.mark.parametrize("capacity", [1_000, 100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("when_full", ["evict_lru", "refuse"])
def test_nothing_is_refused_or_evicted_below_load_0_9(capacity, when_full):
    layout = layout_of(1, capacity, partitions_for(capacity, 4096), SGD, TABLES[:1], when_full=when_full)
    shard = Shard(layout, 0, 1)
    keys = np.random.default_rng(0).integers(2**64, size=int(0.9 * capacity), dtype=np.uint64)
    for start in range(0, keys.size, 5000):
        part = keys[start : start + 5000]
        shard.look_up(0, part, np.zeros(part.size, np.uint16), 1 + start, create=True)
    counters = shard.counters()["user"]
    assert (counters.refused, counters.evicted, counters.rows) == (0, 0, keys.size)
    assert (find_rows(shard.stores[0], keys, np.zeros(keys.size, np.uint16)) >= 0).all()


@pytest.mark.parametrize("capacity", [1, 1_000, 20_000])
def test_a_full_store_that_refuses_answers_zeros_and_counts(capacity):
    layout = layout_of(2, capacity, partitions_for(capacity, 4096), SGD, TABLES[:1], when_full="refuse")
    shard = Shard(layout, 0, 1)
    keys = np.random.default_rng(0).integers(2**64, size=3 * capacity, dtype=np.uint64)
    tables = np.zeros(keys.size, np.uint16)
    rows = shard.look_up(0, keys, tables, 1, create=True, batch=0).view(np.float32)
    counters = shard.counters()["user"]
    there = find_rows(shard.stores[0], keys, tables) >= 0
    assert there.sum() == counters.rows == counters.admitted <= capacity
    assert counters.refused == keys.size - counters.rows
    assert counters.rows >= 0.99 * capacity
    assert (rows.any(1) == there).all()
    shard.update(0, keys, tables, np.ones((keys.size, 2), np.float32), 1, 0)
    assert shard.counters()["user"].gradients_missing == counters.refused
    np.testing.assert_array_equal(shard.values(0, keys[there], tables[there]), rows[there] - np.float32(0.5))


def test_a_full_evicting_store_retains_used_rows_within_its_capacity():
    capacity = 20_000
    layout = layout_of(2, capacity, partitions_for(capacity, 4096), SGD, TABLES[:1])
    shard = Shard(layout, 0, 1)
    rng = np.random.default_rng(0)
    hot = rng.integers(2**64, size=2000, dtype=np.uint64)
    for step in range(1, 60):
        keys = np.concatenate([hot, rng.integers(2**64, size=2000, dtype=np.uint64)])
        shard.look_up(0, keys, np.zeros(keys.size, np.uint16), step, create=True)
    counters = shard.counters()["user"]
    # A new key finds no space only if both its buckets are full of rows of the same step.
    assert counters.refused < 5
    assert counters.evicted == counters.admitted - counters.rows > 90_000
    assert 0.99 * capacity < counters.rows == shard.stores[0].used <= capacity
    assert counters.hits == 58 * hot.size
    assert shard.totals() == TableTotals(counters.rows, counters.evicted, counters.hits, counters.misses)


def test_a_full_evicting_store_does_not_refuse_more_ids_with_time():
    layout = layout_of(1, 2048, 1, SGD, TABLES[:1], when_full="evict_lru")
    shard, rng = Shard(layout, 0, 1), np.random.default_rng(0)
    known = rng.integers(2**64, size=8192, dtype=np.uint64)
    for step in range(1, 300):
        keys = rng.choice(known, 819, replace=False)
        shard.look_up(0, keys, np.zeros(keys.size, np.uint16), step, create=True)
    counters = shard.counters()["user"]
    assert counters.refused < 0.001 * counters.admitted


def pair(capacity, partitions=1, **settings):
    layout = layout_of(1, capacity, partitions, SGD, TABLES[:1], **settings)
    return Shard(layout, 0, 1), naive_store.Store(layout)


def train(shard, twin, keys, step):
    """Look keys of table 0 up in both."""
    names = [(key, 0) for key in keys]
    shard.look_up(0, *arrays(names), step, create=True)
    twin.look_up(names, step, create=True)
    compare(shard, twin)


def alive(shard, keys):
    return [row >= 0 for row in find_rows(shard.stores[0], *arrays([(key, 0) for key in keys])).tolist()]


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(5, 400), st.sampled_from(["evict_lru", "refuse"]))
def test_random_keys_fill_and_overfill_a_partition_as_the_twin_does(seed, capacity, when_full):
    shard, twin = pair(capacity, when_full=when_full)
    rng = np.random.default_rng(seed)
    for step, count in enumerate((capacity // 2, capacity // 3, capacity // 4, 40), start=1):
        train(shard, twin, rng.integers(2**64, size=count, dtype=np.uint64).tolist(), step)


def test_a_batch_never_evicts_what_itself_uses_nor_what_a_later_step_used():
    shard, twin = pair(8)
    keys = colliding(shard.layout, 12)
    train(shard, twin, keys[:8], 5)
    for step in (0, 4, 5):
        train(shard, twin, keys[8:10], step)
        assert alive(shard, keys[:10]) == [True] * 8 + [False] * 2
    train(shard, twin, [*keys[8:], *keys[:6]], 6)
    # Rows 6 and 7 were evicted; those that the batch itself uses were not.
    assert alive(shard, keys) == [True] * 6 + [False] * 2 + [True] * 2 + [False] * 2


@settings(max_examples=25)
@given(
    st.integers(1, 100) | st.integers(1, 3000), st.sampled_from([1, 1, 2, 7]), st.integers(1, 400),
    st.sampled_from(["evict_lru", "refuse"]), st.integers(0, 2**32),
)  # fmt: skip
def test_a_capacity_is_never_exceeded_and_used_to_the_full(capacity, partitions, batch, when_full, seed):
    """By batches that are smaller and greater than it; and a new id is not refused for ever."""
    layout = layout_of(1, capacity, partitions, SGD, TABLES[:1], when_full=when_full)
    shards = [Shard(layout, server, 2) for server in range(2)]
    rng = np.random.default_rng(seed)
    owners = partition_owners(partitions, 2)
    most = layout.groups[0].rows_per_partition * partitions
    for step in range(1, 4 + 3 * capacity // batch):
        keys = rng.integers(2**64, size=batch, dtype=np.uint64)
        for server, shard in enumerate(shards):
            own = keys[owners[((keys >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)] == server]
            shard.look_up(0, own, np.zeros(own.size, np.uint16), step, create=True)
        rows = sum(shard.counters()["user"].rows for shard in shards)
        assert rows == sum(shard.stores[0].used for shard in shards) <= most <= capacity
    assert rows > 0.8 * most - 3 * partitions
