"""The plan of a batch and the merging of gradients against their plain twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.data.read.batch import is_single
from persia_cli.errors import WireError
from persia_cli.plan.dense import DIM, MAX_WEIGHTS
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store import batch_rows
from persia_cli.store.batch_rows import RowPlanner, dense_rows, merge_gradients
from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.wire.message import TableTotals
from tests import naive
from tests.support.runs import make_run

NAMES = ("a", "b", "c")
SALTS = {name: table_salt(name) for name in NAMES}
IDS = [0, 1, 7, 2**64 - 1, 7 ^ SALTS["a"] ^ SALTS["b"]]
PLAIN = ((0, 0), (0, 0), (0, 0))


def layout_of(partitions=16, stacks=PLAIN):
    """Three tables with `stacks` (rounds, size), four features; the outer ones of group 0 share a table."""
    sgd = RowOptimizer("sgd", 0.1)
    a, b, c = (
        TableSpec(name, number, SALTS[name], 0.1, rounds=rounds, size=size)
        for number, (name, (rounds, size)) in enumerate(zip(NAMES, stacks, strict=True))
    )
    groups = (GroupSpec(0, 4, sgd, (a, b), 100, partitions), GroupSpec(1, 8, sgd, (c,), 100, 2 * partitions))
    features = (
        FeatureSpec("f0", 0, 0, "sum"),
        FeatureSpec("f1", 1, 2, "sum"),
        FeatureSpec("f2", 0, 1, "mean"),
        FeatureSpec("f3", 0, 0, "none", 5),
    )
    return EmbeddingLayout(groups, features, 0)


STACKS = st.tuples(st.integers(0, 3), st.sampled_from([1, 5, 1000, 2**32]))


@st.composite
def batches(draw):
    """(ids, offsets, size) of a batch of four features with empty samples, few distinct ids or all equal."""
    size = draw(st.integers(0, 4))
    if draw(st.booleans()):
        counts = [1] * (4 * size)
    else:
        counts = draw(st.lists(st.integers(0, 3), min_size=4 * size, max_size=4 * size))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    choices = draw(st.sampled_from([IDS, IDS[:1], list(range(40))]))
    ids = draw(st.lists(st.sampled_from(choices), min_size=int(offsets[-1]), max_size=int(offsets[-1])))
    return np.array(ids, np.uint64), offsets, size


def as_lists(rows):
    offsets = None if rows.offsets is None else rows.offsets.tolist()
    return rows.keys.tolist(), rows.tables.tolist(), rows.bounds.tolist(), rows.inverse.tolist(), offsets


@given(
    st.lists(batches(), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3, 16, 40]),
    st.sampled_from([1, 16]),
    st.just(PLAIN) | st.tuples(STACKS, STACKS, STACKS),
)
def test_plans_equal_the_naive_twin_batch_after_batch(sequence, servers, partitions, stacks):
    layout = layout_of(partitions, stacks)
    planner = RowPlanner(layout, servers)
    found, expected = [], []
    for ids, offsets, size in sequence:
        ids.flags.writeable = offsets.flags.writeable = False
        found += planner.plan(ids, offsets, size)
        expected += [naive.plan_group(layout, group, servers, ids, offsets, size) for group in (0, 1)]
    # Plans share no memory with later ones.
    assert [as_lists(rows) for rows in found] == expected


def test_a_large_batch_is_planned_and_a_worn_out_epoch_begins_again():
    planner, size = RowPlanner(layout_of(), 2), 2000
    ids, offsets = np.arange(4 * size, dtype=np.uint64) % 500, np.arange(4 * size + 1, dtype=np.uint32)
    expected = [naive.plan_group(layout_of(), group, 2, ids, offsets, size) for group in (0, 1)]
    for epoch in (0, 2**32 - 2, 2**32 - 1):
        for group in planner._groups:
            group._epoch = epoch or group._epoch
        assert [as_lists(rows) for rows in planner.plan(ids, offsets, size)] == expected


def test_ids_that_stand_for_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(batch_rows, "MAX_ENTRIES", 6)
    planner = RowPlanner(layout_of(stacks=((3, 10), (0, 0), (0, 0))), 1)
    with pytest.raises(WireError, match="features f0, f2, f3 need 7 rows"):
        planner.plan(np.zeros(4, np.uint64), np.arange(5, dtype=np.uint32), 1)


@pytest.mark.parametrize("offsets", [[0, 1, 2, 3], [0, 1, 2, 3, 5], [0, 2, 1, 3, 4], []])
def test_a_malformed_batch_is_refused(offsets):
    with pytest.raises(WireError, match="malformed"):
        RowPlanner(layout_of(), 1).plan(np.zeros(4, np.uint64), np.array(offsets, np.uint32), 1)


PAIRS = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 1)), max_size=6, unique=True)


@given(
    st.lists(PAIRS, min_size=2, max_size=4),
    st.sampled_from([1, 3, 16, 17]),
    st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_merged_gradients_equal_the_naive_twin(ranks, dim, wire):
    rng = np.random.default_rng(len(ranks))
    parts = [
        (
            np.array([key for key, _ in pairs], np.uint64),
            np.array([table for _, table in pairs], np.uint16),
            encode_rows(rng.standard_normal((len(pairs), dim)).astype(np.float32), wire),
        )
        for pairs in ranks
    ]
    keys, tables, gradients = merge_gradients(parts, dim, wire)
    expected = naive.merge([(keys, tables, decode_rows(block, dim, wire)) for keys, tables, block in parts])
    assert list(zip(keys.tolist(), tables.tolist(), strict=True)) == list(expected)
    np.testing.assert_array_equal(gradients, np.array(list(expected.values()), np.float32).reshape(-1, dim))


LAYOUT = embedding_layout(make_run(mode={"kind": "async"}, embedding={"capacity": 1000}))


def dense_group() -> GroupSpec:
    group = LAYOUT.dense_group
    assert group is not None
    return group


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_each_server_takes_its_rows_in_the_order_of_ids(servers: int, count: int) -> None:
    group = dense_group()
    rows = dense_rows(group, servers, count)
    keys = naive.keys_of(group.tables[0].salt, range(count))
    assert sorted(rows.inverse.tolist()) == list(range(count))
    np.testing.assert_array_equal(rows.keys[rows.inverse], keys)
    assert rows.bounds.tolist()[0::servers] == [0, count]
    assert rows.offsets is None
    ids = np.argsort(rows.inverse)
    for server in range(servers):
        part = slice(rows.bounds[server], rows.bounds[server + 1])
        assert (np.diff(ids[part]) > 0).all()
        shard = Shard(LAYOUT, server, servers)
        zeros = shard.look_up(group.number, rows.keys[part], rows.tables[part], 0, create=True)
        assert zeros.shape == (rows.bounds[server + 1] - rows.bounds[server], 4 * DIM)
        assert not zeros.view(np.float32).any()
        # They are no rows of features, which alone the totals count.
        assert shard.totals() == TableTotals()


def test_no_partition_is_full_with_as_many_rows_as_there_can_be() -> None:
    group = dense_group()
    keys = dense_rows(group, 1, MAX_WEIGHTS // DIM).keys
    partitions = (keys >> np.uint64(32)) * np.uint64(group.partitions) >> np.uint64(32)
    assert np.bincount(partitions).max() < 0.6 * group.rows_per_partition


def test_missing_offsets_are_those_of_one_id_each():
    """A loader leaves out what counts from 0 up; the plan is the same to the bit, also for a batch of another size."""
    sent, left_out = RowPlanner(layout_of(), 2), RowPlanner(layout_of(), 2)
    for size in (5, 9, 5, 0):
        ids, offsets = np.arange(4 * size, dtype=np.uint64) % 7, np.arange(4 * size + 1, dtype=np.uint32)
        expected = [as_lists(rows) for rows in sent.plan(ids, offsets, size)]
        assert is_single(offsets)
        assert [as_lists(rows) for rows in left_out.plan(ids, None, size)] == expected
    with pytest.raises(WireError, match="there are 20 offsets, and 21 are needed"):
        left_out.plan(np.zeros(19, np.uint64), None, 5)
    assert not any(is_single(np.array(offsets, np.uint32)) for offsets in ([0, 0, 2], [0, 2, 2], [0, 1, 3], [0, 0]))
