"""A shard: its answers and refusals, rows remembered for an update, admission."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import ConfigError, WireError
from persia_cli.store.layout import EmbeddingLayout
from persia_cli.store.shard import Shard
from tests import naive, naive_store
from tests.support.shards import OPTIMIZERS, SEED, SGD, TABLES, arrays, colliding, compare, find_rows, layout_of

IDS = [0, 1, 2, 3, 2**63, 2**64 - 1]


def names_of(ids, table=TABLES[0]):
    """(key, table number) of ids."""
    return [(naive.mix(id_ ^ table.salt), table.number) for id_ in ids]


def pairs_of(ids):
    """Names of ids in two tables, with those ids of the second whose keys are the first's."""
    keys = names_of(ids) + names_of([id_ ^ TABLES[0].salt ^ TABLES[1].salt for id_ in ids], TABLES[1])
    return keys + names_of(ids, TABLES[1])


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["create", "read", "update"]),
        st.lists(st.sampled_from(pairs_of(IDS)), max_size=12),
        st.integers(0, 5),
        st.integers(0, 2**32),
    ),
    max_size=6,
)


@settings(max_examples=60)
@given(EVENTS, st.sampled_from([1, 3, 16, 17]), st.sampled_from([1, 2, 5, 100]), st.sampled_from(OPTIMIZERS))
def test_a_shard_equals_its_naive_twin_exactly_even_where_names_repeat(events, dim, capacity, optimizer):
    layout = layout_of(dim, capacity, 2, optimizer)
    shard, twin = Shard(layout, 0, 1), naive_store.Store(layout)
    for kind, names, step, seed in events:
        if kind == "update":
            rng = np.random.default_rng(seed)
            gradients = rng.standard_normal((len(names), dim)).astype(np.float32)
            gradients[rng.random(len(names)) < 0.2, dim - 1] = rng.choice([np.nan, np.inf, -np.inf])
            shard.update(0, *arrays(names), gradients, step)
            twin.update(names, gradients, step)
        else:
            block = shard.look_up(0, *arrays(names), step, kind == "create")
            np.testing.assert_array_equal(block.view(np.float32), twin.look_up(names, step, kind == "create"))
        compare(shard, twin)


def test_a_shard_without_tables_counts_and_stores_nothing():
    """A network of dense features alone has none."""
    shard = Shard(EmbeddingLayout((), (), SEED), 0, 1)
    assert shard.counters() == {}
    shard.end_snapshot()


def test_two_tables_with_the_same_key_never_share_a_row():
    shard = Shard(layout_of(), 0, 1)
    keys, tables = arrays(pairs_of([5])[:2])
    assert keys[0] == keys[1]
    shard.look_up(0, keys, tables, 0, create=True)
    first = shard.values(0, keys, tables)
    assert (first[0] != first[1]).all()
    shard.update(0, keys[:1], tables[:1], np.ones((1, 3), np.float32), 0)
    after = shard.values(0, keys, tables)
    assert (after[0] != first[0]).all()
    np.testing.assert_array_equal(after[1], first[1])
    assert {name: counters.rows for name, counters in shard.counters().items()} == {"user": 1, "item": 1}


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_admission_is_a_pure_function_of_the_id_and_admits_its_share(share):
    count = 20_000
    layout = layout_of(dim=1, capacity=2 * count, partitions=8, optimizer=SGD, admission=share)
    names, shard = names_of(range(count)), Shard(layout, 0, 1)
    for start in [*range(0, count, 3000)] * 2:
        shard.look_up(0, *arrays(names[start : start + 3000]), 0, create=True)
    admitted = find_rows(shard.stores[0], *arrays(names)) >= 0
    assert abs(admitted.mean() - share) <= 4 * np.sqrt(share * (1 - share) / count)
    assert shard.counters()["user"].refused == 0
    table = layout.groups[0].tables[0]
    assert admitted[:500].tolist() == [naive_store.is_admitted(SEED, table, id_) for id_ in range(500)]


def test_read_only_arrays_and_an_empty_batch_are_served():
    shard = Shard(layout_of(), 0, 1)
    keys, tables = arrays(pairs_of([1])[:2])
    gradients = np.ones((2, 3), np.float32)
    for array in (keys, tables, gradients):
        array.flags.writeable = False
    assert shard.look_up(0, keys, tables, 0, create=True, batch=1).shape == (2, 12)
    shard.update(0, keys, tables, gradients, 0, batch=1)
    assert shard.look_up(0, keys[:0], tables[:0], 0, create=True, batch=2).shape == (0, 12)
    shard.update(0, keys[:0], tables[:0], gradients[:0], 1, batch=2)
    assert shard.counters()["item"].rows == 1


def test_foreign_keys_are_refused_and_change_nothing():
    shard = Shard(layout_of(), 1, 2)
    keys, tables = np.array([2**63, 1], np.uint64), np.zeros(2, np.uint16)
    for bad_keys, bad_tables, group in [
        (keys, tables, 0),
        (keys[1:], tables[:1], 0),
        (keys[:1], np.array([1], np.uint16), 0),
        (keys[:1], np.array([3], np.uint16), 0),
        (keys[:1], np.array([65535], np.uint16), 0),
        (keys[:1], tables, 0),
        (keys[:1], tables[:1], 1),
        (keys[:1], tables[:1], -1),
    ]:
        for create in (True, False):
            with pytest.raises(WireError):
                shard.look_up(group, bad_keys, bad_tables, 0, create)
        with pytest.raises(WireError):
            shard.check_update(group, bad_keys, bad_tables, np.ones((bad_keys.size, 3), np.float32), 0)
    for gradients in (np.ones((1, 2), np.float32), np.ones((1, 11), np.uint8), np.ones((2, 3), np.float32)):
        with pytest.raises(WireError, match=r"gradients of shape \(\d, \d+\), not \(1, \d+\)"):
            shard.check_update(0, keys[:1], tables[:1], gradients, 0)
    for step in (-1, 2**32):
        with pytest.raises(WireError, match="step"):
            shard.look_up(0, keys[:1], tables[:1], step, create=True)
    assert shard.stores[0].used == 0
    without = Shard(layout_of(partitions=1), 1, 2)
    assert without.look_up(0, *arrays([]), 0, create=True).shape == (0, 12)
    with pytest.raises(WireError, match="does not belong"):
        without.look_up(0, keys[:1], tables[:1], 0, create=True)
    shard.look_up(0, keys[:1], tables[:1], 2**32 - 1, create=True)
    assert shard.stores[0].used == 1


def test_an_update_never_changes_the_row_that_another_key_got_meanwhile():
    layout = layout_of(capacity=4, partitions=1, optimizer=SGD)
    shard = Shard(layout, 0, 1)
    keys = colliding(layout, 12)
    first, second = [(key, 0) for key in keys[:4]], [(key, 0) for key in keys[4:8]]
    shard.look_up(0, *arrays(first), 1, create=True, batch="first")
    shard.look_up(0, *arrays(second), 2, create=True, batch="second")
    assert shard.counters()["user"].evicted == 4
    before = shard.values(0, *arrays(second))
    shard.update(0, *arrays(first), np.ones((4, 3), np.float32), 1, "first")
    np.testing.assert_array_equal(shard.values(0, *arrays(second)), before)
    assert shard.counters()["user"].gradients_missing == 4
    shard.update(0, *arrays(second), np.ones((4, 3), np.float32), 2, "second")
    np.testing.assert_array_equal(shard.values(0, *arrays(second)), before - np.float32(0.5))


@pytest.mark.parametrize("between", [0, 1, 255, 256, 512])
def test_remembered_rows_are_distinguished_after_many_look_ups(between):
    layout = layout_of(capacity=4, partitions=1, optimizer=SGD)
    shard = Shard(layout, 0, 1)
    keys = colliding(layout, 9)
    name, others = (keys[0], 0), [(key, 0) for key in keys[1:5]]
    shard.look_up(0, *arrays([name]), 1, create=True, batch="kept")
    for number in range(between):
        # The last look-up gives the row to another key.
        names = others if number == between - 1 else []
        shard.look_up(0, *arrays(names), 2, create=True)
    before = shard.values(0, *arrays(others))
    shard.update(0, *arrays([name]), np.ones((1, 3), np.float32), 1, "kept")
    np.testing.assert_array_equal(shard.values(0, *arrays(others)), before)
    assert shard.counters()["user"].gradients_missing == (between > 0)


@pytest.mark.parametrize("order", [slice(2, None), slice(None, None, -1)], ids=["fewer", "others"])
def test_rows_remembered_for_other_keys_are_not_used(order):
    shard = Shard(layout_of(optimizer=SGD), 0, 1)
    names = names_of(range(4))
    shard.look_up(0, *arrays(names), 0, create=True, batch=1)
    expected = shard.values(0, *arrays(names))
    gradients = np.arange(12, dtype=np.float32).reshape(4, 3)[order]
    shard.update(0, *arrays(names[order]), gradients, 0, 1)
    expected[order] -= np.float32(0.5) * gradients
    np.testing.assert_array_equal(shard.values(0, *arrays(names)), expected)


def test_capacity_is_shared_by_partitions_and_bounded_by_the_machine():
    layout = layout_of(capacity=100, partitions=3)
    assert [Shard(layout, server, 2).stores[0].capacity for server in range(2)] == [66, 33]
    with pytest.raises(ConfigError, match=r"embedding\.capacity"):
        Shard(layout_of(capacity=2**33), 0, 1)
    with pytest.raises(ConfigError, match="cannot reserve memory"):
        Shard(layout_of(dim=2**17, capacity=3 << 30), 0, 1)
