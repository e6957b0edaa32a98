"""Slots for new keys: which row moves, which is evicted, and when there is no room, against the plain twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.store.shard import Shard
from tests import naive_store
from tests.support.shards import SGD, TABLES, arrays, colliding, compare, layout_of, slots_of

ONE = TABLES[:1]


def pair(capacity, partitions=1, **settings):
    layout = layout_of(1, capacity, partitions, SGD, ONE, **settings)
    return Shard(layout, 0, 1), naive_store.Store(layout)


def train(shard, twin, keys, step):
    """Look keys of table 0 up in both."""
    names = [(key, 0) for key in keys]
    shard.look_up(0, *arrays(names), step, create=True)
    twin.look_up(names, step, create=True)
    compare(shard, twin)


def alive(shard, keys):
    return [row >= 0 for row in shard.stores[0].find(*arrays([(key, 0) for key in keys])).tolist()]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(5, 400), st.sampled_from(["evict", "refuse"]))
def test_random_keys_fill_and_overfill_a_partition_as_the_twin_does(seed, capacity, when_full):
    shard, twin = pair(capacity, when_full=when_full)
    rng = np.random.default_rng(seed)
    for step, count in enumerate((capacity // 2, capacity // 3, capacity // 4, 40), start=1):
        train(shard, twin, rng.integers(2**64, size=count, dtype=np.uint64).tolist(), step)


@pytest.mark.parametrize("capacity", [30, 300])
def test_keys_move_along_paths_of_several_buckets_as_the_twins_do(capacity, monkeypatch):
    lengths = []
    pulled = naive_store.Store.pulled
    monkeypatch.setattr(
        naive_store.Store, "pulled", lambda self, path, place: lengths.append(len(path)) or pulled(self, path, place)
    )
    for seed in range(2 if capacity > 100 else 20):
        shard, twin = pair(capacity)
        keys = np.random.default_rng(seed).integers(2**64, size=capacity, dtype=np.uint64).tolist()
        for start in range(0, capacity, 10):
            train(shard, twin, keys[start : start + 10], 1)
        assert shard.counters()["user"].rows == capacity
    assert max(lengths) >= 2


def test_many_keys_of_the_same_two_buckets_fill_them_and_then_evict_the_oldest():
    shard, twin = pair(100)
    layout = shard.layout
    keys = colliding(layout, 12)
    for step, key in enumerate(keys[:8], start=10):
        train(shard, twin, [key], step)
    assert alive(shard, keys) == [True] * 8 + [False] * 4
    # The first key is used again; of two of the same age the one in the first slot goes.
    train(shard, twin, [keys[0]], 30)
    train(shard, twin, [keys[8]], 31)
    assert alive(shard, keys[:9]) == [True, False] + [True] * 7
    train(shard, twin, [keys[2], keys[9], keys[10]], 32)
    assert alive(shard, keys[:11]) == [True, False, True, False, False] + [True] * 6


def test_a_batch_never_evicts_what_itself_uses_nor_what_a_later_step_used():
    shard, twin = pair(8)
    keys = colliding(shard.layout, 12)
    train(shard, twin, keys[:8], 5)
    for step in (0, 4, 5):
        train(shard, twin, keys[8:10], step)
        assert alive(shard, keys[:10]) == [True] * 8 + [False] * 2
    train(shard, twin, [*keys[8:], *keys[:6]], 6)
    # Rows 6 and 7 made room; those that the batch itself uses did not.
    assert alive(shard, keys) == [True] * 6 + [False] * 2 + [True] * 2 + [False] * 2


def test_where_nothing_is_evicted_a_full_partition_refuses_even_an_empty_bucket():
    shard, twin = pair(4, when_full="refuse")
    rng = np.random.default_rng(0)
    train(shard, twin, rng.integers(2**64, size=50, dtype=np.uint64).tolist(), 1)
    assert shard.stores[0].used == 4
    assert shard.counters()["user"].refused == 46


def test_an_empty_bucket_takes_a_key_of_a_full_partition_without_eviction():
    shard, twin = pair(8)
    keys = colliding(shard.layout, 8)
    first = twin.candidates(keys[0])[0]
    train(shard, twin, keys, 1)
    other = next(
        key
        for key in np.random.default_rng(1).integers(2**64, size=1000, dtype=np.uint64).tolist()
        if not twin.candidates(key)[0]
    )
    assert len(first) == 4
    train(shard, twin, [other], 1)
    counters = shard.counters()["user"]
    assert (counters.rows, counters.evicted) == (9, 0)


def test_slots_are_taken_in_order_of_arrival():
    shard, twin = pair(100)
    keys = colliding(shard.layout, 6)
    train(shard, twin, keys, 3)
    filled = [bucket for bucket in slots_of(shard.stores[0]) if bucket]
    assert sorted([[slot[0] for slot in bucket] for bucket in filled], key=len, reverse=True) == [keys[:4], keys[4:]]
