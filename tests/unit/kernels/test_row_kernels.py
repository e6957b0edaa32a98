"""Rows in answers to look-ups, and new rows, for every stored dtype and wire dtype."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels import look_up
from persia_cli.kernels.rows import CODES
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows, row_bytes
from tests import naive, naive_optimizers
from tests.support.shards import OPTIMIZERS, SEED, TABLES, arrays, insert, layout_of

DTYPES = ["float32", "bfloat16", "float16"]
DIMS = [1, 2, 3, 15, 16, 17, 33, 64]
VALUES = st.sampled_from([0.0, -0.0, 1e-45, 1e-38, 2.0**-135, 6e-8, 65504.0, -1.0]) | st.floats(-6e4, 6e4, width=32)


def named(ids, table=TABLES[1]):
    return [(naive.mix(id_ ^ table.salt), table.number) for id_ in ids]


def sent(store, names, wire):
    """The output of `read_rows`, and the found rows."""
    block = np.full((len(names), row_bytes(store.group.dim, wire)), 0xAB, np.uint8)
    found = np.empty(len(names), np.int64)
    out = block.reshape(-1).view(np.uint16)
    look_up.read_rows(store.index, store.rows, *arrays(names), CODES[wire], found, out)
    return block, found


@settings(max_examples=60)
@given(st.data(), st.sampled_from(DIMS), st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_rows_travel_as_the_wire_encodes_them(data, dim, dtype, wire):
    group = layout_of(dim, 20, 1, OPTIMIZERS[2], TABLES[1:2], dtype=dtype).groups[0]
    store = RowStore(group, range(1))
    values = np.array(data.draw(st.lists(st.lists(VALUES, min_size=dim, max_size=dim), max_size=3)), np.float32)
    values = values.reshape(-1, dim)
    count = len(values)
    names = named(range(count + 2))
    parts = {"embedding": values, "adagrad_sum": np.full((count, dim), 7, np.float32)}
    insert(store, names[:count], np.zeros(count, np.int64), parts)
    block, found = sent(store, names, wire)
    kept = naive_optimizers.rounded(values, dtype).reshape(-1, dim)
    assert block[:count].tobytes() == encode_rows(kept, wire).tobytes()
    # Missing rows are zeros.
    assert not block[count:].any()
    assert found.tolist() == [*range(count), -1, -1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wire", DTYPES)
def test_a_row_that_is_not_finite_arrives_as_such(bad, wire):
    group = layout_of(17, 20, 1, OPTIMIZERS[0], TABLES[1:2]).groups[0]
    store = RowStore(group, range(1))
    values = np.ones((2, 17), np.float32)
    values[0, 16] = bad
    insert(store, named(range(2)), np.zeros(2, np.int64), {"embedding": values})
    block, _ = sent(store, named(range(2)), wire)
    with np.errstate(invalid="ignore"):
        arrived = decode_rows(block, 17, wire)
    assert not np.isfinite(arrived[0, 16])
    np.testing.assert_array_equal(arrived[1], values[1])


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
