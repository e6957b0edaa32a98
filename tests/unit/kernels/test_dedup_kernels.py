"""Numbering of distinct keys, and sums per key, against their plain twins."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels import dedup
from tests import naive

KEYS = st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
PAIRS = st.tuples(KEYS, st.integers(0, 2))


def number(keys, tables, scratch, epoch):
    unique = dedup.UniqueKeys(scratch, np.empty_like(keys), np.empty_like(tables))
    inverse = np.empty(keys.size, np.int32)
    count = dedup.number_keys(keys, tables, epoch, unique, inverse)
    return unique.keys[:count].tolist(), unique.tables[:count].tolist(), inverse.tolist()


@settings(deadline=None)
@given(st.lists(PAIRS, max_size=40), st.lists(PAIRS, max_size=9))
def test_numbers_equal_the_naive_twin_after_any_earlier_epoch(pairs, earlier):
    scratch = np.zeros(128, np.uint64)
    for epoch, batch in enumerate((earlier, pairs, pairs), start=1):
        keys = np.array([key for key, _ in batch], np.uint64)
        tables = np.array([table for _, table in batch], np.uint16)
        assert number(keys, tables, scratch, epoch) == naive.unique(keys, tables)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([5, 5 + 2**20, 2**63 + 5, 2**64 - 1, 63]), st.integers(0, 2)), max_size=30))
def test_keys_with_one_slot_stay_distinct(pairs):
    keys = np.array([key for key, _ in pairs], np.uint64)
    tables = np.array([table for _, table in pairs], np.uint16)
    assert number(keys, tables, np.zeros(64, np.uint64), 2**32 - 1) == naive.unique(keys, tables)


@settings(deadline=None)
@given(st.lists(KEYS, unique=True, max_size=30), st.sampled_from([1, 2, 5, 16]))
def test_keys_are_ordered_by_server_and_the_inverse_follows(keys, servers):
    keys = np.array(keys, np.uint64)
    tables = np.arange(keys.size, dtype=np.uint16)
    inverse = np.arange(keys.size, dtype=np.int32)[::-1].repeat(2)
    wanted = keys[inverse]
    owners = np.array([naive.server_of(p << 60, 16, servers) for p in range(16)], np.uint16)
    ordered_keys, ordered_tables = np.empty_like(keys), np.empty_like(tables)
    bounds = np.empty(servers + 1, np.int64)
    place = np.empty(keys.size, np.int32)
    dedup.order_by_server(keys, tables, owners, place, inverse, ordered_keys, ordered_tables, bounds)
    order = sorted(range(keys.size), key=lambda i: naive.server_of(int(keys[i]), 16, servers))
    assert ordered_keys.tolist() == [int(keys[i]) for i in order]
    assert ordered_tables.tolist() == order
    for server in range(servers):
        own = ordered_keys[bounds[server] : bounds[server + 1]].tolist()
        assert all(naive.server_of(key, 16, servers) == server for key in own)
    assert (bounds[0], bounds[-1]) == (0, keys.size)
    assert ordered_keys[inverse].tolist() == wanted.tolist()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.sampled_from([1, 3, 16, 17, 64]))
def test_sums_equal_the_naive_twin(inverse, dim):
    values = np.random.default_rng(len(inverse)).standard_normal((len(inverse), dim)).astype(np.float32)
    sums, expected = np.zeros((4, dim), np.float32), np.zeros((4, dim), np.float32)
    dedup.add_rows(values.reshape(-1), np.array(inverse, np.int32), dim, sums.reshape(-1))
    for row, value in zip(inverse, values, strict=True):
        expected[row] += value
    np.testing.assert_array_equal(sums, expected)
