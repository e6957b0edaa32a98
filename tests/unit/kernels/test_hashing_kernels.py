"""Keys and initial values against their plain twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.kernels import hashing
from tests import naive

WORDS = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), WORDS)
def test_keys_equal_the_naive_twin_and_lead_back_to_their_ids(ids, salt):
    ids, tables, salts = np.array(ids, np.uint64), np.ones(len(ids), np.uint16), np.array([7, salt], np.uint64)
    keys, back = np.empty_like(ids), np.empty_like(ids)
    hashing.hash_ids(ids, tables, salts, keys)
    np.testing.assert_array_equal(keys, naive.keys_of(salt, ids))
    hashing.recover_ids(keys, tables, salts, back)
    np.testing.assert_array_equal(back, ids)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=4), WORDS, WORDS, st.sampled_from([1, 3, 16, 17]), st.sampled_from([0.0, 0.01, 3.0]))
def test_initial_values_equal_the_naive_twin(ids, salt, seed, dim, bound):
    ids = np.array(ids, np.uint64)
    width = -(-2 * dim // 4) * 4
    arena = np.full(len(ids) * width, np.nan, np.float32)
    positions, tables = np.arange(len(ids)), np.zeros(len(ids), np.uint16)
    hashing.fill_new_rows(
        arena, width, dim, 1, positions, positions[::-1].copy(), naive.keys_of(salt, ids), tables,
        np.uint64(seed), np.array([salt], np.uint64), np.array([bound], np.float32), 0.5,
    )  # fmt: skip
    rows = arena.reshape(-1, width)[::-1]
    np.testing.assert_array_equal(rows[:, :dim], naive.initial_rows(seed, salt, ids, dim, bound))
    assert (rows[:, dim : 2 * dim] == 0.5).all()
    assert (rows[:, 2 * dim :] == 0).all()


def test_initial_values_are_uniform_and_never_reach_the_bound():
    count, dim, bound = 20_000, 16, 0.1
    arena = np.empty(count * dim, np.float32)
    positions = np.arange(count)
    keys = np.empty(count, np.uint64)
    tables, salts = np.zeros(count, np.uint16), np.array([5], np.uint64)
    hashing.hash_ids(positions.astype(np.uint64), tables, salts, keys)
    hashing.fill_new_rows(
        arena, dim, dim, 0, positions, positions, keys, tables, np.uint64(1), salts, np.array([bound], np.float32), 0.0
    )
    assert arena.min() >= -np.float32(bound)
    assert arena.max() < np.float32(bound)
    shares = np.histogram(arena, 64, (-bound, bound))[0] / arena.size
    assert np.abs(shares - 1 / 64).max() < 6 * np.sqrt(1 / 64 / arena.size)
    correlation = np.corrcoef(arena.reshape(count, dim).T)
    assert np.abs(correlation - np.eye(dim)).max() < 6 / np.sqrt(count)


def test_one_bit_of_an_id_changes_half_the_bits_of_its_key():
    ids = np.arange(1000, dtype=np.uint64)
    changes = []
    for bit in range(64):
        keys, others = naive.keys_of(3, ids), naive.keys_of(3, ids ^ np.uint64(1 << bit))
        changes.append(np.bitwise_count(keys ^ others).mean())
    assert min(changes) == pytest.approx(32, abs=1)
    assert max(changes) == pytest.approx(32, abs=1)
