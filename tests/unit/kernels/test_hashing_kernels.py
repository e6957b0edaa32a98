"""Keys and offsets against their plain twins."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from persia_cli.kernels import hashing
from persia_cli.store.layout import TableSpec
from tests import naive

WORDS = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))


@njit
def keys_of_id(id_, salt, rounds, size, keys, to):
    return hashing.keys_of_id(id_, salt, rounds, size, keys, to)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), WORDS)
def test_keys_equal_the_naive_twin_and_lead_back_to_their_ids(ids, salt):
    ids, tables, salts = np.array(ids, np.uint64), np.ones(len(ids), np.uint16), np.array([7, salt], np.uint64)
    keys, back = np.empty_like(ids), np.empty_like(ids)
    hashing.hash_ids(ids, tables, salts, keys)
    np.testing.assert_array_equal(keys, naive.keys_of(salt, ids))
    hashing.recover_ids(keys, tables, salts, back)
    np.testing.assert_array_equal(back, ids)


SIZES = st.sampled_from([1, 2, 1000, 2**32])


@settings(deadline=None)
@given(WORDS, WORDS, st.integers(0, 3), SIZES)
def test_an_id_has_the_keys_of_the_naive_twin(id_, salt, rounds, size):
    keys = np.full(5, 7, np.uint64)
    end = keys_of_id(np.uint64(id_), np.uint64(salt), rounds, np.uint64(size), keys, np.uint64(1))
    table = TableSpec("t", 0, salt, 0.1, rounds=rounds, size=size)
    assert end == 1 + max(rounds, 1)
    assert keys.tolist() == [7, *naive.keys_of_stack(table, id_), *[7] * (5 - int(end))]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=4), st.integers(1, 3))
def test_offsets_are_checked_and_rebased(counts, rounds):
    size, features = 3, len(counts)
    offsets = np.concatenate([[0], np.cumsum(np.array(counts, int).reshape(-1))]).astype(np.uint32)
    single = np.empty(features, np.bool_)
    assert hashing.check_offsets(offsets, size, single)
    assert single.tolist() == [each == [1, 1, 1] for each in counts]
    own = np.arange(0, features, 2)
    rebased = np.empty(own.size * size + 1, np.uint32)
    hashing.rebase_offsets(offsets, size, own, np.full(own.size, rounds), rebased)
    lengths = [count * rounds for feature in own for count in counts[feature]]
    assert rebased.tolist() == np.concatenate([[0], np.cumsum(lengths)]).tolist()
