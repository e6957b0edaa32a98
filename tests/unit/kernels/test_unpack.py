"""Columns in the bytes of a body are unpacked as numpy does it, at any offset."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.kernels.serving.unpack import unpack


@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 4), st.integers(1, 40))
def test_columns_are_those_of_numpy(seed, dense, sparse, size):
    rng = np.random.default_rng(seed)
    body, begins, steps, columns = b"", [], [], []
    for kind in ("<f4",) * dense + ("<u8",) * sparse:
        body += bytes(rng.integers(0, 9))
        begins.append(len(body))
        steps.append(int(rng.integers(0, 2)))
        count = size if steps[-1] else 1
        values = rng.standard_normal(count) if kind == "<f4" else rng.integers(0, 2**64, count, np.uint64)
        columns.append(values.astype(kind))
        body += columns[-1].tobytes()
    numbers, ids = np.full(size * dense, np.nan, np.float32), np.zeros(size * sparse, np.uint64)
    places = [np.array(each, np.int64) for each in (begins[:dense], steps[:dense], begins[dense:], steps[dense:])]
    assert unpack(np.frombuffer(body, np.uint8), *places, size, numbers, ids)
    for column, expected in enumerate(columns[:dense]):
        np.testing.assert_array_equal(numbers.reshape(size, dense)[:, column], np.broadcast_to(expected, size))
    for column, expected in enumerate(columns[dense:]):
        np.testing.assert_array_equal(ids.reshape(sparse, size)[column], np.broadcast_to(expected, size))


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38, 1e-45, -0.0])
def test_it_reports_a_number_that_is_not_finite(place, value):
    values = np.arange(7, dtype=np.float32)
    values[place] = value
    numbers, none = np.empty(7, np.float32), np.empty(0, np.int64)
    own = [np.array([0], np.int64), np.array([1], np.int64), none, none]
    found = unpack(np.frombuffer(values.tobytes(), np.uint8), *own, 7, numbers, np.empty(0, np.uint64))
    assert found == np.isfinite(value)
    assert numbers.tobytes() == values.tobytes()
