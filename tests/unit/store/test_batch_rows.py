"""The plan of a batch and the merging of gradients against their plain twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import WireError
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.merge import merge_gradients
from tests import naive

NAMES = ("a", "b", "c")
SALTS = {name: table_salt(name) for name in NAMES}
TABLES = {name: TableSpec(name, number, SALTS[name], 0.1) for number, name in enumerate(NAMES)}
IDS = [0, 1, 7, 2**64 - 1, 7 ^ SALTS["a"] ^ SALTS["b"]]


def layout_of(partitions=16):
    sgd = RowOptimizer("sgd", 0.1)
    groups = (
        GroupSpec(0, 4, sgd, (TABLES["a"], TABLES["b"]), 100),
        GroupSpec(1, 8, sgd, (TABLES["c"],), 100),
    )
    features = (
        FeatureSpec("f0", 0, 0, "sum"),
        FeatureSpec("f1", 1, 2, "sum"),
        FeatureSpec("f2", 0, 1, "mean"),
        FeatureSpec("f3", 0, 0, "none", 5),
    )
    return EmbeddingLayout(groups, features, partitions, 0)


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


@settings(deadline=None)
@given(st.lists(batches(), min_size=1, max_size=3), st.sampled_from([1, 2, 3, 16]))
def test_plans_equal_the_naive_twin_batch_after_batch(sequence, servers):
    layout = layout_of()
    planner = RowPlanner(layout, servers)
    for ids, offsets, size in sequence:
        ids.flags.writeable = offsets.flags.writeable = False
        plans = planner.plan(ids, offsets, size)
        assert len(plans) == 2
        for group, rows in enumerate(plans):
            assert as_lists(rows) == naive.plan_group(layout, group, servers, ids, offsets, size)


def test_a_large_batch_grows_the_scratch_and_a_worn_out_epoch_starts_again():
    layout = layout_of()
    planner = RowPlanner(layout, 2)
    rng = np.random.default_rng(0)
    size = 2000
    ids, offsets = rng.integers(0, 500, 4 * size).astype(np.uint64), np.arange(4 * size + 1, dtype=np.uint32)
    first = planner.plan(ids, offsets, size)
    assert len(first[1].keys) == len(np.unique(ids[size : 2 * size]))
    planner._epoch = 2**32 - 2
    for _ in range(2):
        again = planner.plan(ids, offsets, size)
        assert [as_lists(rows) for rows in again] == [as_lists(rows) for rows in first]


def test_a_plan_keeps_nothing_that_a_later_plan_changes():
    planner = RowPlanner(layout_of(), 2)
    offsets = np.arange(5, dtype=np.uint32)
    first = planner.plan(np.array([1, 2, 3, 4], np.uint64), offsets, 1)
    before = [as_lists(rows) for rows in first]
    planner.plan(np.array([9, 9, 9, 9], np.uint64), offsets, 1)
    assert [as_lists(rows) for rows in first] == before


@pytest.mark.parametrize("offsets", [[0, 1, 2, 3], [0, 1, 2, 3, 5], [0, 2, 1, 3, 4], []])
def test_a_malformed_batch_is_refused(offsets):
    with pytest.raises(WireError, match="malformed"):
        RowPlanner(layout_of(), 1).plan(np.zeros(4, np.uint64), np.array(offsets, np.uint32), 1)


PAIRS = st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 1)), max_size=6, unique=True)


@settings(deadline=None)
@given(st.lists(PAIRS, min_size=1, max_size=4), st.sampled_from([1, 3, 16, 17]))
def test_merged_gradients_equal_the_naive_twin(ranks, dim):
    rng = np.random.default_rng(len(ranks))
    parts = [
        (
            np.array([key for key, _ in pairs], np.uint64),
            np.array([table for _, table in pairs], np.uint16),
            rng.standard_normal((len(pairs), dim)).astype(np.float32),
        )
        for pairs in ranks
    ]
    keys, tables, gradients = merge_gradients(parts)
    expected = naive.merge(parts)
    assert list(zip(keys.tolist(), tables.tolist(), strict=True)) == list(expected)
    np.testing.assert_array_equal(gradients, np.array(list(expected.values()), np.float32).reshape(-1, dim))


def test_nothing_to_merge_is_an_error():
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_gradients([])
