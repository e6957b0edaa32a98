"""Rows of dense weights: every server's own, all of them once, and room for the most there can be."""

import numpy as np
import pytest

from persia_cli.plan.dense import DIM, MOST_WEIGHTS
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.dense_rows import dense_rows
from persia_cli.store.layout import GroupSpec
from persia_cli.store.shard import Shard
from persia_cli.wire.parts import TableTotals
from tests import naive
from tests.support.runs import make_run

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
        # They are no rows of features, of which alone totals tell.
        assert shard.totals() == TableTotals()


def test_no_partition_is_full_with_as_many_rows_as_there_can_be() -> None:
    group = dense_group()
    keys = dense_rows(group, 1, MOST_WEIGHTS // DIM).keys
    partitions = (keys >> np.uint64(32)) * np.uint64(group.partitions) >> np.uint64(32)
    assert np.bincount(partitions).max() < 0.6 * group.rows_per_partition
