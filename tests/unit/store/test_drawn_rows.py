"""Rows of drawn negatives: read and updated, but neither created nor counted as used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.roles.embedding_worker import KnownIds, drawn_of
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from tests.support.shards import rows_in
from tests.unit.store.test_row_policies import counters, have_rows, keys_by_chance, layout, look_up

TABLES = [TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("ab")]
LAYOUT = EmbeddingLayout(
    (GroupSpec(0, 2, RowOptimizer("sgd", 0.1), tuple(TABLES), 1000, 16),),
    (FeatureSpec("item", 0, 0, "sum"), FeatureSpec("other", 0, 1, "sum"), FeatureSpec("last", 0, 0, "none", 9),
     FeatureSpec("negatives", 0, 0, "negatives")),
    0,
)  # fmt: skip
IDS = st.lists(st.integers(0, 12), max_size=6)


@given(st.lists(IDS, min_size=3, max_size=3), IDS, st.integers(1, 4))
def test_keys_that_only_negatives_have_are_the_last_of_each_server(used, negatives, servers):
    """A batch of one sample."""
    lists = [*used, negatives]
    ids, offsets = (
        np.array([id_ for each in lists for id_ in each], np.uint64),
        np.cumsum([0, *map(len, lists)]).astype(np.uint32),
    )
    [rows] = RowPlanner(LAYOUT, servers).plan(ids, offsets, 1)
    drawn = set(negatives) - set(used[0]) - set(used[2])
    with_table = [(rows.keys[row], rows.tables[row]) for row in rows.inverse.tolist()]
    assert len(set(with_table)) == rows.keys.size
    keys = {rows.keys[row] for row, id_ in zip(rows.inverse[::-1], ids[::-1], strict=True) if id_ in drawn
            and rows.tables[row] == 0}  # fmt: skip
    for server in range(servers):
        first, end = rows.bounds[server : server + 2]
        count = sum(drawn_of(server, [rows]))
        assert set(rows.keys[end - count : end]) == keys & set(rows.keys[first:end])
    known = KnownIds(LAYOUT)
    nothing = [[np.empty(0, np.uint32)]] * servers
    assert known.add([rows], nothing, True) == (ids.size - len(negatives), 0)


def drawn_look_up(shard, used, drawn, step, batch=None):
    keys = np.concatenate([used, drawn])
    [answer] = shard.look_up_batch([(keys, np.zeros(keys.size, np.uint16))], step, 0, batch, [drawn.size])
    return answer


def test_a_drawn_key_gets_no_row_and_does_not_count_towards_one():
    shard, keys = Shard(layout(min_count=2), 0, 1), keys_by_chance(20)
    for step in range(5):
        rows, new = drawn_look_up(shard, keys[:10], keys[10:], step)
        assert not np.frombuffer(rows.tobytes(), np.float32)[10:].any()
        assert new.positions.size == (10 if step < 2 else 0)
    assert have_rows(shard, keys).tolist() == [True] * 10 + [False] * 10
    assert look_up(shard, keys[10:], 5).size == 10
    assert not have_rows(shard, keys[10:]).any(), "five draws were no look-up"


@pytest.mark.parametrize("batch", ["batch", None], ids=["remembered", "sync of several ranks"])
def test_a_drawn_row_is_updated_and_as_old_as_before(batch):
    shard, keys = Shard(layout(), 0, 1), keys_by_chance(20)
    tables = np.zeros(20, np.uint16)
    look_up(shard, keys, 0)
    hits = counters(shard).hits
    before = shard.values(0, keys, tables)
    rows, _ = drawn_look_up(shard, keys[:10], keys[10:], 7, batch)
    np.testing.assert_array_equal(rows.view(np.float32).ravel(), before.ravel())
    shard.update_batch([(keys, tables, np.ones((20, 1), np.float32))], 7, [0], batch)
    assert (shard.values(0, keys, tables) != before).all()
    assert counters(shard).hits == hits + 10
    there = rows_in(shard.stores[0])
    used = dict(zip(there.keys.tolist(), there.last_used.tolist(), strict=True))
    assert [used[key] for key in keys.tolist()] == [7] * 10 + [0] * 10
