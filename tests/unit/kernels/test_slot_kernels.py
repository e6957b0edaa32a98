"""Slots for new keys: moved and evicted rows, and refusals without space, against the plain twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.store.layout import partition_owners
from persia_cli.store.shard import Shard
from tests import naive_store
from tests.support.shards import SGD, TABLES, arrays, colliding, compare, layout_of

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


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 100) | st.integers(1, 3000), st.sampled_from([1, 1, 2, 7]), st.integers(1, 400),
    st.sampled_from(["evict_lru", "refuse"]), st.integers(0, 2**32),
)  # fmt: skip
def test_a_capacity_is_never_exceeded_and_used_to_the_full(capacity, partitions, batch, when_full, seed):
    """By batches that are smaller and greater than it; and a new id is not refused for ever."""
    layout = layout_of(1, capacity, partitions, SGD, ONE, when_full=when_full)
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
