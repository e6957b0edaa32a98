"""The keys of ids, and the numbering of distinct keys, against their plain twins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.batch import dedup
from persia_cli.kernels.rows import hashing
from tests import naive

WORDS = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@given(st.lists(WORDS, max_size=8), WORDS)
def test_keys_equal_the_naive_twin_and_lead_back_to_their_ids(ids, salt):
    ids, tables, salts = np.array(ids, np.uint64), np.ones(len(ids), np.uint16), np.array([7, salt], np.uint64)
    keys, back = np.empty_like(ids), np.empty_like(ids)
    hashing.hash_ids(ids, tables, salts, keys)
    np.testing.assert_array_equal(keys, naive.keys_of(salt, ids))
    hashing.recover_ids(keys, tables, salts, back)
    np.testing.assert_array_equal(back, ids)


@given(st.lists(st.tuples(st.sampled_from([5, 5 + 2**20, 2**63 + 5, 2**64 - 1, 63]), st.integers(0, 2)), max_size=30))
def test_keys_with_one_slot_stay_distinct(pairs):
    keys, tables = np.array([key for key, _ in pairs], np.uint64), np.array([table for _, table in pairs], np.uint16)
    unique = dedup.UniqueKeys(np.zeros(64, np.uint64), np.empty_like(keys), np.empty_like(tables))
    inverse = np.empty(keys.size, np.int32)
    count = dedup.number_keys(keys, tables, 2**32 - 1, unique, inverse)
    found = unique.keys[:count].tolist(), unique.tables[:count].tolist(), inverse.tolist()
    assert found == naive.unique(keys, tables)
