"""Kernels that look into the index: long batches, and rows that were reused since a look-up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels.table import index
from persia_cli.store.shard import Shard
from tests.support.shards import SGD, find_rows, layout_of


def store_of(keys, capacity=30, partitions=1):
    """A store with a row for each key of table 2."""
    shard = Shard(layout_of(1, capacity, partitions, SGD), 0, 1)
    shard.look_up(0, keys, np.full(keys.size, 2, np.uint16), 5, create=True)
    return shard.stores[0]


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 256, 1000])
def test_batches_longer_than_a_chunk_are_found_whole(count):
    keys = np.random.default_rng(0).integers(2**64, size=1000, dtype=np.uint64)
    store = store_of(keys[::2].copy(), 2000, 3)
    found = find_rows(store, keys[:count], np.full(count, 2, np.uint16))
    assert (found >= 0).tolist() == [at % 2 == 0 for at in range(count)]


@settings(max_examples=100)
@given(
    st.integers(0, 255),
    st.integers(0, 255),
    st.lists(st.tuples(st.integers(-255, 255), st.booleans()), min_size=1, max_size=6),
)
def test_verify_looks_again_for_rows_reused_since(since, age, reuses):
    """Rows of keys 0, 1, …; `reuses` has the last reuse of each, and True if its key is in another row now."""
    keys = np.random.default_rng(0).integers(2**64, size=len(reuses), dtype=np.uint64)
    store, names = store_of(keys), (keys, np.full(keys.size, 2, np.uint16))
    right = find_rows(store, *names)
    kept = right.copy()
    for at, (when, elsewhere) in enumerate(reuses):
        store.index.reused[right[at]] = (since + when) % 256
        if elsewhere:
            # As if the look-up had found a row that another key has now.
            store.index.reused[20] = (since + age) % 256
            kept[at] = 20 if age else -1
    index.verify(store.index, *names, since, age, kept)
    assert kept.tolist() == right.tolist()
