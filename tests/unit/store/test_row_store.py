"""A row store: inserted rows, rows read and written as stored, windows of partitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import ConfigError
from persia_cli.store.layout import TableSpec
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from tests import naive_optimizers, naive_store
from tests.support.shards import OPTIMIZERS, SGD, TABLES, arrays, colliding, compare, compare_store, insert, layout_of

DTYPES = ["float32", "bfloat16", "float16"]
KEYS = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def parts_of(group, count, seed=0):
    rng = np.random.default_rng(seed)
    columns = group.vectors
    return {name: rng.standard_normal((count, width)).astype(np.float32) for name, width in columns.items()}


@settings(max_examples=50)
@given(
    st.lists(st.tuples(KEYS, st.sampled_from([0, 2])), max_size=60),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(DTYPES),
    st.sampled_from([1, 3, 17]),
)
def test_insertions_equal_the_naive_twin(names, capacity, partitions, optimizer, dtype, dim):
    layout = layout_of(dim, capacity, partitions, optimizer, dtype=dtype)
    group = layout.groups[0]
    store, twin = RowStore(group, range(partitions)), naive_store.Store(layout)
    for part in (names[:20], names[20:], names[:5]):
        # Only the first of equal names counts, so their values are the same here.
        part = list(dict.fromkeys(part))
        parts, last_used = parts_of(group, len(part)), np.arange(len(part)) + 2**32 - 100
        inserted = insert(store, part, last_used, parts)
        assert inserted == twin.insert(part, last_used.tolist(), parts)
        assert store.used <= store.capacity <= capacity
        compare_store(store, twin)


@pytest.mark.parametrize("when_full", ["evict_lru", "refuse"])
@pytest.mark.parametrize("capacity", [3, 100, 1000])
def test_of_more_rows_than_fit_those_used_last_stay(capacity, when_full):
    layout = layout_of(1, capacity, 1, SGD, TABLES[:1], when_full=when_full)
    shard, twin = Shard(layout, 0, 1), naive_store.Store(layout)
    keys = np.random.default_rng(0).integers(2**64, size=2 * capacity, dtype=np.uint64)
    last_used = np.random.default_rng(1).permutation(keys.size).astype(np.int64)
    parts = parts_of(layout.groups[0], keys.size)
    assert shard.insert(0, keys, np.zeros(keys.size, np.uint16), last_used, parts) == 0
    twin.insert([(key, 0) for key in keys.tolist()], last_used.tolist(), parts)
    compare(shard, twin)
    counters = shard.counters()["user"]
    assert (counters.rows, counters.left_out) == (capacity, capacity)
    there = shard.stores[0].find(keys, np.zeros(keys.size, np.uint16)) >= 0
    if when_full == "evict_lru":
        assert last_used[there].mean() > 1.3 * capacity or capacity == 3
        assert there[last_used >= 1.9 * capacity].all()


def test_more_tables_than_slots_share_a_key_until_its_buckets_are_full():
    tables = tuple(TableSpec(f"t{number}", number, number, 0.1) for number in range(12))
    layout = layout_of(2, 100, 1, SGD, tables)
    store, twin = RowStore(layout.groups[0], range(1)), naive_store.Store(layout)
    names = [(2**64 - 1, number) for number in range(12)]
    parts = parts_of(layout.groups[0], 12)
    inserted = insert(store, names, np.arange(12), parts)
    assert inserted == twin.insert(names, list(range(12)), parts) == 0
    assert store.used == 8
    compare_store(store, twin)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 17])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[2:], ids=lambda optimizer: optimizer.kind)
def test_rows_are_read_as_written_and_neighbours_stay(dtype, dim, optimizer):
    group = layout_of(dim, 20, 1, optimizer, dtype=dtype).groups[0]
    store = RowStore(group, range(1))
    whole = parts_of(group, 20, 1)
    whole["embedding"] *= np.float32(100)
    store.write_rows(np.arange(20), whole)
    kept = store.read_rows(np.arange(20))
    np.testing.assert_array_equal(kept["embedding"], naive_optimizers.rounded(whole["embedding"], dtype))
    for name in optimizer.states(dim):
        np.testing.assert_array_equal(kept[name], whole[name])
    # Read values are stored exactly when they are written again.
    places = np.array([7, 3])
    store.write_rows(places, {name: part[places[::-1]] for name, part in kept.items()})
    order = np.arange(20)
    order[[7, 3]] = 3, 7
    for name, part in store.read_rows(np.arange(20)).items():
        np.testing.assert_array_equal(part, kept[name][order])


def test_halves_saturate_or_round_to_even_at_their_edges():
    group = layout_of(6, 20, 1, SGD, dtype="float16").groups[0]
    store = RowStore(group, range(1))
    values = np.array([[1e6, -1e6, 65519.0, 2.0**-25, 1.5 * 2.0**-24, -0.0]], np.float32)
    store.write_rows(np.array([2]), {"embedding": values})
    read = store.read_rows(np.array([2]))["embedding"]
    assert read.tolist() == [[65504.0, -65504.0, 65504.0, 0.0, 2 * 2.0**-24, 0.0]]


def test_one_table_and_several_find_the_same_rows():
    """The tables of rows are compared only if a group has several."""
    one, two = (layout_of(1, 50, 1, SGD, TABLES[:count]) for count in (1, 2))
    names = [(key, 0) for key in colliding(one, 8)]
    found = []
    for layout in (one, two):
        store = RowStore(layout.groups[0], range(1))
        insert(store, names, np.arange(8), parts_of(layout.groups[0], 8))
        found.append(store.find(*arrays(names[::-1])).tolist())
    assert found == [list(range(8))[::-1]] * 2


def test_memory_beyond_the_machine_is_a_config_error():
    def refuse(size, dtype):
        raise MemoryError

    with pytest.raises(ConfigError, match=r"cannot reserve memory for 96 rows of feature group 0 \(32 bytes each\)"):
        RowStore(layout_of(dim=3).groups[0], range(8), refuse)
