"""Kernels that look into the index, against the plain twin; key 0, 2^64 - 1, keys of several tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels import index
from persia_cli.store.shard import Shard
from tests import naive_store
from tests.support.shards import SGD, arrays, compare_store, layout_of

KEYS = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
NAMES = st.lists(st.tuples(KEYS, st.sampled_from([0, 2])), max_size=30)


def pair(names, capacity=30, partitions=1):
    """A store and its twin, with a row for each name at step 5."""
    layout = layout_of(1, capacity, partitions, SGD)
    shard, twin = Shard(layout, 0, 1), naive_store.Store(layout)
    names = list(dict.fromkeys(names))
    shard.look_up(0, *arrays(names), 5, create=True)
    twin.look_up(names, 5, create=True)
    return shard.stores[0], twin


@settings(max_examples=50)
@given(NAMES, NAMES, st.integers(1, 40), st.integers(1, 5), st.integers(0, 10))
def test_find_and_touch_raise_the_scores_of_what_is_there(there, asked, capacity, partitions, step):
    store, twin = pair(there, capacity, partitions)
    asked = asked + there
    known = [twin.find(name) is not None for name in asked]
    found = store.find(*arrays(asked))
    assert (found >= 0).tolist() == known
    compare_store(store, twin)
    rows = np.empty(len(asked), np.int64)
    index.find_and_touch(store.index, *arrays(asked), step, rows)
    assert rows.tolist() == found.tolist()
    for row in filter(None, map(twin.find, asked)):
        row.last_used = max(row.last_used, step)
    compare_store(store, twin)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 256, 1000])
def test_batches_longer_than_a_chunk_are_found_whole(count):
    keys = np.random.default_rng(0).integers(2**64, size=1000, dtype=np.uint64)
    store, twin = pair([(key, 2) for key in keys[::2].tolist()], 2000, 3)
    names = [(key, 2) for key in keys[:count].tolist()]
    found = store.find(*arrays(names))
    assert (found >= 0).tolist() == [twin.find(name) is not None for name in names]
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
    store, _ = pair([(key, 0) for key in keys.tolist()])
    names = arrays([(key, 0) for key in keys.tolist()])
    right = store.find(*names)
    kept = right.copy()
    for at, (when, elsewhere) in enumerate(reuses):
        store.index.reused[right[at]] = (since + when) % 256
        if elsewhere:
            # As if the look-up had found a row that another key has now.
            store.index.reused[20] = (since + age) % 256
            kept[at] = 20 if age else -1
    index.verify(store.index, *names, np.uint32(9), since, age, kept)
    assert kept.tolist() == right.tolist()


@given(NAMES, st.data())
def test_remembered_rows_fit_only_the_same_keys_and_tables(names, data):
    rows = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=len(names), max_size=len(names))), np.int64)
    asked = list(names)
    if names and data.draw(st.booleans()):
        asked[data.draw(st.integers(0, len(names) - 1))] = data.draw(st.tuples(KEYS, st.sampled_from([0, 2])))
    if data.draw(st.booleans()):
        asked = asked[: data.draw(st.integers(0, len(names)))]
    expected = (2 if (rows >= 0).all() else 1) if asked == names else 0
    assert index.same_keys(*arrays(asked), *arrays(names), rows) == expected


@given(st.lists(st.tuples(KEYS, st.integers(0, 5)), max_size=20), st.integers(1, 9), st.data())
def test_first_foreign_names_the_first_key_or_table_of_others(names, partitions, data):
    first = data.draw(st.integers(0, partitions))
    own = data.draw(st.integers(0, partitions - first))
    members = np.array([1, 0, 1, 0], np.uint8)
    foreign = [
        at
        for at, (key, table) in enumerate(names)
        if not first <= key * partitions >> 64 < first + own or table not in (0, 2)
    ]
    found = index.first_foreign(*arrays(names), members, first, partitions, own)
    assert found == (foreign[0] if foreign else -1)
