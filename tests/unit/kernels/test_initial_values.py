"""The initial values of rows: uniform, within their bound, independent."""

import numpy as np

from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows
from tests import naive


def test_initial_values_are_uniform_and_never_reach_the_bound():
    count, dim, bound = 20_000, 16, 0.1
    table = TableSpec("t", 0, 5, bound)
    group = GroupSpec(0, dim, RowOptimizer("sgd", 0.1), (table,), 2 * count, 4)
    shard = Shard(EmbeddingLayout((group,), (FeatureSpec("f", 0, 0, "sum"),), 1), 0, 1)
    keys = naive.keys_of(table.salt, range(count))
    rows = decode_rows(shard.look_up(0, keys, np.zeros(count, np.uint16), 0, True), dim, "float32")
    assert rows.min() >= -np.float32(bound)
    assert rows.max() < np.float32(bound)
    shares = np.histogram(rows, 64, (-bound, bound))[0] / rows.size
    assert np.abs(shares - 1 / 64).max() < 6 * np.sqrt(1 / 64 / rows.size)
    assert np.abs(np.corrcoef(rows.T) - np.eye(dim)).max() < 6 / np.sqrt(count)
    np.testing.assert_array_equal(rows[:50], naive.initial_rows(1, table.salt, range(50), dim, bound))
