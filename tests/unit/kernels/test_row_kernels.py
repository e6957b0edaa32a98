"""Rows in answers to look-ups, and new rows, for every stored dtype and wire dtype."""

import numpy as np
import pytest
from hypothesis import strategies as st

from persia_cli.store.shard import Shard
from tests import naive, naive_optimizers
from tests.support.shards import OPTIMIZERS, SEED, TABLES, arrays, layout_of

DTYPES = ["float32", "bfloat16", "float16"]
DIMS = [1, 16, 33]
VALUES = st.sampled_from([0.0, -0.0, 1e-45, 1e-38, 2.0**-135, 6e-8, 65504.0, -1.0]) | st.floats(-6e4, 6e4, width=32)


def named(ids, table=TABLES[1]):
    return [(naive.mix(id_ ^ table.salt), table.number) for id_ in ids]


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
@pytest.mark.parametrize("dim", [1, 16, 300])
def test_batches_of_any_size_are_sent_in_their_order(count, dim):
    shard = Shard(layout_of(dim, 4000, 1, OPTIMIZERS[0], TABLES[1:2]), 0, 1)
    names = named(range(count))
    block = shard.look_up(0, *arrays(names), 0, create=True)
    rows = block.view(np.float32)
    some = list(range(0, count, 97))
    np.testing.assert_array_equal(rows[some], naive.initial_rows(SEED, TABLES[1].salt, some, dim, 1.0))
    assert shard.look_up(0, *arrays(names[::-1]), 0, create=True).tobytes() == rows[::-1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_new_rows_begin_as_the_naive_twins_after_any_content(optimizer, dim, dtype):
    shard = Shard(layout_of(dim, 8, 1, optimizer, TABLES[1:2], dtype=dtype), 0, 1)
    store = shard.stores[0]
    store.rows.arena[:] = np.nan
    ids = [0, 5, 2**64 - 1]
    shard.look_up(0, *arrays(named(ids)), 0, create=True)
    parts = store.read_rows(store.find(*arrays(named(ids))))
    embedding = naive.initial_rows(SEED, TABLES[1].salt, ids, dim, 1.0)
    np.testing.assert_array_equal(parts["embedding"], naive_optimizers.rounded(embedding, dtype))
    for at in range(len(ids)):
        for name, values in naive_optimizers.initial_states(optimizer, embedding[at]).items():
            np.testing.assert_array_equal(parts[name][at], values)
