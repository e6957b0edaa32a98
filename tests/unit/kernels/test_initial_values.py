"""The initial values of rows: uniform, within their bound, independent, and those of the plain twin."""

import numpy as np
import pytest

from persia_cli.store.layout import EmbeddingLayout, FeatureSpec, GroupSpec, RowOptimizer, TableSpec
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows
from tests import naive, naive_optimizers
from tests.support.shards import OPTIMIZERS, SEED, TABLES, arrays, find_rows, layout_of


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("dim", [1, 16, 33])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[2:], ids=lambda optimizer: optimizer.kind)
def test_new_rows_begin_as_the_naive_twins_after_any_content(optimizer, dim, dtype):
    shard = Shard(layout_of(dim, 8, 1, optimizer, TABLES[1:2], dtype=dtype), 0, 1)
    store, ids = shard.stores[0], [0, 5, 2**64 - 1]
    names = arrays([(naive.mix(id_ ^ TABLES[1].salt), TABLES[1].number) for id_ in ids])
    store.rows.arena[:] = np.nan
    shard.look_up(0, *names, 0, create=True)
    parts = store.read_rows(find_rows(store, *names))
    embedding = naive.initial_rows(SEED, TABLES[1].salt, ids, dim, 1.0)
    np.testing.assert_array_equal(parts["embedding"], naive_optimizers.rounded(embedding, dtype))
    for at in range(len(ids)):
        for name, values in naive_optimizers.initial_states(optimizer, embedding[at]).items():
            np.testing.assert_array_equal(parts[name][at], values)
