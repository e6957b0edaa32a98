"""Shards that fill up: nothing is refused before load 0.9, and their behaviour at capacity."""

import numpy as np
import pytest

from persia_cli.store.layout import partitions_for
from persia_cli.store.shard import Shard
from persia_cli.wire.message import TableTotals
from tests.support.shards import SGD, TABLES, layout_of


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
    assert (shard.stores[0].find(keys, np.zeros(keys.size, np.uint16)) >= 0).all()


@pytest.mark.parametrize("capacity", [1, 1_000, 20_000])
def test_a_full_store_that_refuses_answers_zeros_and_counts(capacity):
    layout = layout_of(2, capacity, partitions_for(capacity, 4096), SGD, TABLES[:1], when_full="refuse")
    shard = Shard(layout, 0, 1)
    keys = np.random.default_rng(0).integers(2**64, size=3 * capacity, dtype=np.uint64)
    tables = np.zeros(keys.size, np.uint16)
    rows = shard.look_up(0, keys, tables, 1, create=True, batch=0).view(np.float32)
    counters = shard.counters()["user"]
    there = shard.stores[0].find(keys, tables) >= 0
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
