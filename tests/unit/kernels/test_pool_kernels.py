"""Pooling kernels against their plain twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.batch import pool
from tests import naive

DIMS = st.sampled_from([1, 3, 16, 17, 32, 33, 64, 100])
ROUNDS = st.integers(1, 3)
ONE = np.ones(1, np.int64)


@st.composite
def batches(draw, one_id=False):
    """(rows, inverse, offsets, modes, rounds, size) of a small group, with empty samples and repeated ids."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, dim, unique = draw(st.integers(0, 5)), draw(DIMS), draw(st.integers(1, 6))
    modes = np.array(draw(st.lists(st.integers(0, 3), max_size=4)), np.uint8)
    rounds = np.array([1 if one_id else draw(ROUNDS) for _ in modes], np.int64)
    ids = np.ones((modes.size, size), int) if one_id else rng.integers(0, 4, (modes.size, size))
    offsets = np.concatenate([[0], np.cumsum(ids * rounds[:, None])]).astype(np.uint32)
    inverse = rng.integers(0, unique, offsets[-1]).astype(np.int32)
    rows = rng.standard_normal((unique, dim)).astype(np.float32)
    for array in (rows, inverse, offsets, modes, rounds):
        array.flags.writeable = False
    return rows, inverse, offsets, modes, rounds, size


def pooled(rows, inverse, offsets, modes, rounds, size):
    out = np.full((size, np.count_nonzero(modes != pool.NONE), rows.shape[1]), np.nan, np.float32)
    pool.pool_forward(rows, inverse, offsets, modes, rounds, out)
    return out


@given(batches().map(lambda batch: (batch, batch[2])) | batches(one_id=True).map(lambda batch: (batch, None)))
def test_pool_forward_and_backward_equal_the_naive_twins(drawn):
    """Without offsets every sample has one id of each feature."""
    (rows, inverse, offsets, modes, rounds, size), sent = drawn
    out = pooled(rows, inverse, sent, modes, rounds, size)
    np.testing.assert_array_equal(out, naive.pool_forward(rows, inverse, offsets, modes, rounds, size))
    expected = naive.pool_backward(out, inverse, offsets, modes, rounds, len(rows))
    of_more_columns = np.concatenate([out, out], axis=1)[:, out.shape[1] :]
    for gradient in (out, of_more_columns, np.asfortranarray(out)):
        gradients = np.zeros_like(rows)
        pool.pool_backward(gradient, inverse, sent, modes, rounds, gradients)
        np.testing.assert_array_equal(gradients, expected)


@given(batches(), st.integers(1, 4))
def test_sequences_equal_the_naive_twins(batch, length):
    rows, inverse, offsets, modes, rounds, size = batch
    for feature in range(modes.size):
        own, per_id = offsets[feature * size : (feature + 1) * size + 1], int(rounds[feature])
        values = np.full((size, length, rows.shape[1]), np.nan, np.float32)
        mask = np.ones((size, length), bool)
        pool.sequence_forward(rows, inverse, own, per_id, values, mask)
        expected_values, expected_mask = naive.sequence_forward(rows, inverse, own, per_id, length)
        np.testing.assert_array_equal(values, expected_values)
        np.testing.assert_array_equal(mask, expected_mask)
        gradients = np.zeros_like(rows)
        pool.sequence_backward(values, inverse, own, per_id, gradients)
        np.testing.assert_array_equal(gradients, naive.sequence_backward(values, inverse, own, per_id, len(rows)))


def test_a_result_that_would_be_written_to_a_copy_is_refused():
    rows, out = np.zeros((3, 4), np.float32), np.zeros((2, 1, 8), np.float32)[:, :, ::2]
    with pytest.raises(ValueError, match="C-contiguous"):
        pool.pool_forward(rows, np.zeros(2, np.int32), None, np.zeros(1, np.uint8), ONE, out)


@pytest.mark.parametrize(
    ("inverse", "offsets", "rounds"),
    [
        ([3], [0, 1], 1),
        ([-1], [0, 1], 1),
        ([0], [0, 2], 1),
        ([0, 0], [2, 0], 1),
        ([0], [0], 1),
        ([0, 0], None, 1),
        ([0] * 3, [0, 3], 2),
        ([0], [0, 1], 0),
    ],
)
def test_bags_that_are_not_of_the_rows_are_refused(inverse, offsets, rounds):
    rows, out = np.zeros((3, 4), np.float32), np.zeros((1, 1, 4), np.float32)
    offsets, rounds = None if offsets is None else np.array(offsets, np.uint32), np.array([rounds], np.int64)
    with pytest.raises(ValueError, match=r"inverse|offsets|id|rounds"):
        pool.pool_forward(rows, np.array(inverse, np.int32), offsets, np.zeros(1, np.uint8), rounds, out)
