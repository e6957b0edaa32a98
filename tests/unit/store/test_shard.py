"""A shard: its answers and refusals, rows remembered for an update, admission."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import ConfigError, WireError
from persia_cli.store import shard as shards
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, TableSpec, partition_owners, table_salt
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows, row_bytes
from tests import naive, naive_store
from tests.support.shards import OPTIMIZERS, SEED, SGD, TABLES, arrays, colliding, compare, layout_of

IDS = [0, 1, 2, 3, 2**63, 2**64 - 1]
WIRES = ["float32", "bfloat16", "float16"]


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


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_initial_rows_do_not_depend_on_order_servers_or_batches(batches):
    names = pairs_of(range(50))
    layout = layout_of(capacity=1000)
    whole = Shard(layout, 0, 1)
    whole.look_up(0, *arrays(names), 0, create=True)
    expected = dict(zip(names, whole.values(0, *arrays(names)).tolist(), strict=True))
    owners = partition_owners(8, 3)
    for server in range(3):
        shard = Shard(layout, server, 3)
        own = [name for name in names if owners[name[0] * 8 >> 64] == server][::-1]
        for batch in range(batches):
            part = own[batch::batches]
            rows = shard.look_up(0, *arrays(part), 7, create=True)
            assert rows.view(np.float32).tolist() == [expected[name] for name in part]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_admission_is_a_pure_function_of_the_id_and_admits_its_share(share):
    count = 20_000
    layout = layout_of(dim=1, capacity=2 * count, partitions=8, optimizer=SGD, admission=share)
    names = names_of(range(count))
    shard = Shard(layout, 0, 1)
    shard.look_up(0, *arrays(names), 0, create=True)
    counters = shard.counters()["user"]
    spread = 4 * np.sqrt(share * (1 - share) / count)
    assert abs(counters.admitted / count - share) <= spread
    assert (counters.not_admitted, counters.refused) == (count - counters.admitted, 0)
    table = layout.groups[0].tables[0]
    admitted = shard.stores[0].find(*arrays(names)) >= 0
    assert admitted[:500].tolist() == [naive_store.is_admitted(SEED, table, id_) for id_ in range(500)]
    # Other servers, another order, small batches, repeated requests: the same ids.
    for server in range(2):
        other = Shard(layout, server, 2)
        own = [at for at in range(3000) if names[at][0] * 8 >> 64 in other.stores[0].partitions][::-1]
        for start in [*range(0, len(own), 100)] * 2:
            other.look_up(0, *arrays([names[at] for at in own[start : start + 100]]), 1, create=True)
        assert (other.stores[0].find(*arrays([names[at] for at in own])) >= 0).tolist() == admitted[own].tolist()


def test_other_seeds_and_tables_admit_other_ids():
    ids = range(2000)
    tables = [layout_of(admission=0.5, tables=TABLES).groups[0].tables[at] for at in range(3)]
    draws = [[naive_store.is_admitted(SEED, table, id_) for id_ in ids] for table in tables]
    draws.append([naive_store.is_admitted(SEED + 1, tables[0], id_) for id_ in ids])
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.1


def test_a_reading_look_up_changes_nothing():
    shard = Shard(layout_of(), 0, 1)
    names = names_of(IDS)
    shard.look_up(0, *arrays(names[:3]), 4, create=True)
    store = shard.stores[0]
    memory = (store.index.buckets, store.index.tables, store.index.reused, store.index.fill, store.rows.arena)
    before = shard.counters(), store.used, [array.tobytes() for array in memory]
    rows = shard.look_up(0, *arrays(names), 9, create=False, batch="kept").view(np.float32)
    assert rows[:3].all()
    assert not rows[3:].any()
    assert before == (shard.counters(), store.used, [array.tobytes() for array in memory])


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
    shard.look_up(0, keys[:1], tables[:1], 2**32 - 1, create=True)
    assert shard.stores[0].used == 1


def test_a_server_without_partitions_of_a_group_refuses_its_keys():
    shard = Shard(layout_of(partitions=1), 1, 2)
    nothing = arrays([])
    assert shard.look_up(0, *nothing, 0, create=True).shape == (0, 12)
    shard.update(0, *nothing, np.empty((0, 3), np.float32), 0)
    with pytest.raises(WireError, match="does not belong"):
        shard.look_up(0, *arrays(names_of([1])), 0, create=True)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", WIRES)
def test_rows_are_sent_as_the_wire_encodes_them(wire, dtype):
    layout = layout_of(dim=17, wire=wire, dtype=dtype)
    shard = Shard(layout, 0, 1)
    names = pairs_of(IDS)[:12]
    block = shard.look_up(0, *arrays(names), 0, create=True)
    assert block.shape == (12, row_bytes(17, wire))
    store = shard.stores[0]
    values = store.read_rows(store.find(*arrays(names)))["embedding"]
    assert block.tobytes() == encode_rows(values, wire).tobytes()
    np.testing.assert_array_equal(shard.values(0, *arrays(names)), decode_rows(block, 17, wire))
    assert not shard.look_up(0, *arrays(names_of([77])), 0, create=False).any()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_gradients_that_are_not_finite_change_no_bit(optimizer, bad, wire):
    dim = 17
    shard = Shard(layout_of(dim, optimizer=optimizer, wire=wire), 0, 1)
    names = names_of(range(6))
    keys, tables = arrays(names)
    shard.look_up(0, keys, tables, 0, create=True)
    gradients = np.ones((6, dim), np.float32)
    for row, column in enumerate((0, 7, 15, 16)):
        gradients[row, column] = bad
    store = shard.stores[0]
    rows = store.find(keys, tables)
    words = store.rows.arena.reshape(-1, store.group.width).view(np.uint32)
    before = words[rows]
    shard.update(0, keys, tables, encode_rows(gradients, wire), 0)
    changed = (words[rows] != before).any(1)
    assert changed.tolist() == [False] * 4 + [True] * 2
    assert (shard.counters()["user"].gradients_refused, shard.counters()["item"].gradients_refused) == (4, 0)


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


@pytest.mark.parametrize("between", [0, 1, 254, 255, 256, 511, 512, 513])
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


def test_rows_remembered_for_other_keys_are_not_used():
    shard = Shard(layout_of(optimizer=SGD), 0, 1)
    names = names_of(range(4))
    shard.look_up(0, *arrays(names), 0, create=True, batch=1)
    before = shard.values(0, *arrays(names))
    shard.update(0, *arrays(names[2:]), np.ones((2, 3), np.float32), 0, 1)
    after = shard.values(0, *arrays(names))
    np.testing.assert_array_equal(after[:2], before[:2])
    np.testing.assert_array_equal(after[2:], before[2:] - np.float32(0.5))


def test_few_look_ups_are_remembered_until_their_update(monkeypatch):
    monkeypatch.setattr(shards, "MAX_REMEMBERED_LOOKUPS", 3)
    shard = Shard(layout_of(), 0, 1)
    keys, tables = arrays(names_of([1]))
    for batch in range(5):
        shard.look_up(0, keys, tables, 0, create=True, batch=batch)
    assert list(shard._remembered[0]) == [2, 3, 4]
    shard.update(0, keys, tables, np.ones((1, 3), np.float32), 0, 3)
    assert list(shard._remembered[0]) == [2, 4]


def test_capacity_is_shared_by_partitions_and_bounded_by_the_machine():
    layout = layout_of(capacity=100, partitions=3)
    assert [Shard(layout, server, 2).stores[0].capacity for server in range(2)] == [66, 33]
    with pytest.raises(ConfigError, match=r"embedding\.capacity"):
        Shard(layout_of(capacity=2**33), 0, 1)
    with pytest.raises(ConfigError, match="cannot reserve memory"):
        Shard(layout_of(dim=2**17, capacity=3 << 30), 0, 1)


def test_groups_of_other_dims_optimizers_and_dtypes_live_side_by_side():
    groups = tuple(
        GroupSpec(
            number, dim, optimizer, (TableSpec(f"t{number}", number, table_salt(f"t{number}"), 0.1),), 50, 2, dtype
        )
        for number, (dim, optimizer, dtype) in enumerate(
            zip([1, 3, 16, 17, 64], OPTIMIZERS, ["float32", "bfloat16", "float16"] * 2, strict=False)
        )
    )
    layout = EmbeddingLayout(groups, (), SEED)
    shard = Shard(layout, 0, 1)
    rng = np.random.default_rng(0)
    for number, group in enumerate(groups):
        twin = naive_store.Store(layout, number)
        names = names_of(range(30), group.tables[0])
        gradients = rng.standard_normal((30, group.dim)).astype(np.float32)
        shard.look_up(number, *arrays(names), 3, create=True, batch=0)
        shard.update(number, *arrays(names), gradients, 3, 0)
        twin.look_up(names, 3, create=True)
        twin.update(names, gradients, 3)
        expected = np.array([twin.find(name).embedding for name in names])
        store = shard.stores[number]
        np.testing.assert_array_equal(store.read_rows(store.find(*arrays(names)))["embedding"], expected)
        assert shard.counters()[f"t{number}"].rows == 30
