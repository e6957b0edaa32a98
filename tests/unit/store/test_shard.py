"""A shard against its plain twin: look-ups, updates, counters, full tables, colliding keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import ConfigError, WireError
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from tests import naive

SALTS = {0: table_salt("user"), 2: table_salt("item")}
IDS = [0, 1, 2, 3, 2**63, 2**64 - 1]
COLLIDING = [id_ ^ SALTS[0] ^ SALTS[2] for id_ in IDS]
"""Ids of table 2 whose keys are those of `IDS` in table 0."""
OPTIMIZERS = [
    RowOptimizer("sgd", lr=0.5),
    RowOptimizer("adagrad", lr=0.5, initial_accumulator_value=0.25, eps=1e-8),
    RowOptimizer("adam", lr=0.5, eps=1e-8, beta1=0.8, beta2=0.9),
]
SEED = 11


def layout_of(dim=3, capacity=100, optimizer=OPTIMIZERS[1], partitions=8):
    tables = (TableSpec("user", 0, SALTS[0], 0.01), TableSpec("item", 2, SALTS[2], 1.0))
    return EmbeddingLayout((GroupSpec(0, dim, optimizer, tables, capacity),), (), partitions, SEED)


def keyed(names):
    """(keys, tables) arrays of (id, table number) pairs."""
    keys = np.array([naive.mix(id_ ^ SALTS[table]) for id_, table in names], np.uint64)
    return keys, np.array([table for _, table in names], np.uint16)


NAMES = st.lists(st.tuples(st.sampled_from(IDS + COLLIDING), st.sampled_from([0, 2])), max_size=12)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["create", "read", "update"]), NAMES, st.integers(0, 5), st.integers(0, 2**32)),
    max_size=8,
)


@settings(deadline=None)
@given(EVENTS, st.sampled_from([1, 3, 16, 17]), st.sampled_from([1, 2, 5, 100]), st.sampled_from(OPTIMIZERS))
def test_a_shard_equals_its_naive_twin_exactly(events, dim, capacity, optimizer):
    layout = layout_of(dim, capacity, optimizer)
    shard, twin = Shard(layout, 0, 1), naive.Group(layout.groups[0], capacity, SEED)
    for kind, names, step, seed in events:
        if kind == "update":
            names = list(dict.fromkeys(names))
            rng = np.random.default_rng(seed)
            gradients = rng.standard_normal((len(names), dim)).astype(np.float32)
            gradients[rng.random(len(names)) < 0.2, dim - 1] = rng.choice([np.nan, np.inf, -np.inf])
            shard.update(0, *keyed(names), gradients, step)
            twin.update(*unzip(names), gradients, step)
        else:
            rows = shard.look_up(0, *keyed(names), step, kind == "create")
            np.testing.assert_array_equal(rows, twin.look_up(*unzip(names), step, kind == "create"))
    compare(shard, twin)


def unzip(names):
    return [id_ for id_, _ in names], [table for _, table in names]


def compare(shard, twin):
    """Rows, states, scores and counters of shard and twin are the same."""
    names = list(twin.rows)
    store = shard.stores[0]
    rows = store.find(*keyed(names))
    assert store.used == len(names) == len(set(rows.tolist()))
    assert (rows >= 0).all()
    width = (1 + len(twin.group.optimizer.states)) * twin.group.dim
    expected = np.array([twin.rows[name] for name in names], np.float32).reshape(-1, width)
    np.testing.assert_array_equal(store.values()[rows, :width], expected)
    assert store.scores(rows).tolist() == [twin.scores[name] for name in names]
    for number, table in twin.tables.items():
        counters, counts = shard.counters()[table.name], twin.counts[number]
        assert {name: getattr(counters, name) for name in counts} == counts
        assert counters.misses == counts["created"] + counts["refused"]
        assert counters.rows == sum(table == number for _, table in names)
        assert counters.bytes == counters.rows * twin.group.width * 4


def test_two_tables_with_the_same_key_never_share_a_row():
    shard = Shard(layout_of(), 0, 1)
    keys, tables = keyed([(5, 0), (5 ^ SALTS[0] ^ SALTS[2], 2)])
    assert keys[0] == keys[1]
    first = shard.look_up(0, keys, tables, 0, create=True)
    assert (first[0] != first[1]).all()
    shard.update(0, keys[:1], tables[:1], np.ones((1, 3), np.float32), 0)
    after = shard.look_up(0, keys, tables, 1, create=False)
    assert (after[0] != first[0]).all()
    np.testing.assert_array_equal(after[1], first[1])
    assert {name: counters.rows for name, counters in shard.counters().items()} == {"user": 1, "item": 1}


def test_many_rows_under_one_first_slot_wrap_around_the_index():
    shard = Shard(layout_of(dim=1, capacity=300), 0, 1)
    low = np.arange(150, dtype=np.uint64)
    keys = np.concatenate([low, low | np.uint64(0xFFFFFFFF00000000)])
    tables = np.zeros(keys.size, np.uint16)
    first = shard.look_up(0, keys, tables, 0, create=True)
    np.testing.assert_array_equal(shard.look_up(0, keys[::-1].copy(), tables, 1, create=False), first[::-1])
    assert shard.counters()["user"].created == 300
    assert len(np.unique(first)) > 290
    assert not shard.look_up(0, keys + np.uint64(1000), tables, 1, create=True).any()
    assert shard.counters()["user"].refused == 300


def test_rows_do_not_depend_on_arrival_or_on_the_number_of_servers():
    names = [(id_, table) for id_ in range(50) for table in (0, 2)]
    keys, tables = keyed(names)
    layout = layout_of(capacity=200)
    expected = Shard(layout, 0, 1).look_up(0, keys, tables, 0, create=True)
    owners = np.array([naive.server_of(int(key), layout.num_partitions, 3) for key in keys])
    for server in range(3):
        own = np.flatnonzero(owners == server)[::-1]
        rows = Shard(layout, server, 3).look_up(0, keys[own], tables[own], 7, create=True)
        np.testing.assert_array_equal(rows, expected[own])


def test_a_reading_look_up_changes_nothing():
    shard = Shard(layout_of(), 0, 1)
    names = [(id_, 0) for id_ in IDS]
    shard.look_up(0, *keyed(names[:3]), 4, create=True)
    store = shard.stores[0]
    before = shard.counters(), store.used, store.info.copy(), store._keys.copy(), store._rows.copy()
    rows = shard.look_up(0, *keyed(names), 9, create=False)
    assert rows[:3].all()
    assert not rows[3:].any()
    assert before[:2] == (shard.counters(), store.used)
    for old, now in zip(before[2:], (store.info, store._keys, store._rows), strict=True):
        np.testing.assert_array_equal(old, now)


def test_read_only_arrays_and_an_empty_batch_are_served():
    shard = Shard(layout_of(), 0, 1)
    keys, tables = keyed([(1, 0), (1, 2)])
    gradients = np.ones((2, 3), np.float32)
    for array in (keys, tables, gradients):
        array.flags.writeable = False
    assert shard.look_up(0, keys, tables, 0, create=True).shape == (2, 3)
    shard.update(0, keys, tables, gradients, 0)
    assert shard.look_up(0, keys[:0], tables[:0], 0, create=True).shape == (0, 3)
    shard.update(0, keys[:0], tables[:0], gradients[:0], 1)
    assert shard.counters()["item"].rows == 1


def test_what_does_not_belong_here_is_refused_and_changes_nothing():
    layout = layout_of()
    shard = Shard(layout, 1, 2)
    keys, tables = np.array([2**63, 1], np.uint64), np.zeros(2, np.uint16)
    for bad_keys, bad_tables, group in [
        (keys, tables, 0),
        (keys[:1], np.array([1], np.uint16), 0),
        (keys[:1], np.array([3], np.uint16), 0),
        (keys[:1], np.array([65535], np.uint16), 0),
        (keys[:1], tables, 0),
        (keys[:1], tables[:1], 1),
    ]:
        with pytest.raises(WireError):
            shard.look_up(group, bad_keys, bad_tables, 0, create=True)
        with pytest.raises(WireError):
            shard.update(group, bad_keys, bad_tables, np.ones((bad_keys.size, 3), np.float32), 0)
    with pytest.raises(WireError, match=r"shape \(1, 2\)"):
        shard.update(0, keys[:1], tables[:1], np.ones((1, 2), np.float32), 0)
    for step in (-1, 2**48):
        with pytest.raises(WireError, match="step"):
            shard.look_up(0, keys[:1], tables[:1], step, create=True)
    assert shard.stores[0].used == 0


def test_capacity_is_shared_by_partitions_and_bounded_by_the_machine():
    layout = layout_of(capacity=100, partitions=3)
    assert [Shard(layout, server, 2).stores[0].capacity for server in range(2)] == [67, 34]
    with pytest.raises(ConfigError, match=r"embedding\.capacity"):
        Shard(layout_of(capacity=2**33), 0, 1)
    with pytest.raises(ConfigError, match="cannot reserve memory"):
        Shard(layout_of(dim=2**17, capacity=3 << 30), 0, 1)
