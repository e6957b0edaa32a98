"""The limits do what the store does, by row number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from scripts.bench import limits

ROWS = 40


@pytest.mark.parametrize(("width", "dim"), [(1, 1), (17, 3), (16, 16), (32, 16), (200, 100)])
def test_gather_reads_rows(width: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    table, rows = rng.random((ROWS, width), np.float32), rng.integers(0, ROWS, 100)
    out = np.empty((100, dim), np.float32)
    limits.gather(table.reshape(-1), width, dim, rows, out.reshape(-1))
    assert np.array_equal(out, table[rows, :dim])


@pytest.mark.parametrize("width", [1, 17, 32, 200])
def test_read_modify_write_adds_to_every_value(width: int) -> None:
    table = np.zeros((ROWS, width), np.float32)
    rows = np.array([3, 0, 3, ROWS - 1])
    limits.read_modify_write(table.reshape(-1), width, rows)
    expected = np.zeros_like(table)
    for row in rows:
        expected[row] += np.float32(1e-9)
    assert np.array_equal(table, expected)


def test_no_rows() -> None:
    nothing, table = np.empty(0, np.int64), np.ones(4, np.float32)
    limits.gather(table, 2, 2, nothing, np.empty(0, np.float32))
    limits.read_modify_write(table, 2, nothing)
    assert (table == 1).all()


@given(arrays.arrays(np.uint64, st.integers(0, 50), elements=st.integers(0, 2**64 - 2), unique=True), st.data())
def test_linear_probing_finds_what_is_there(keys: np.ndarray, data: st.DataObject) -> None:
    there = data.draw(st.integers(0, keys.size))
    slots = np.full(2 * max(1, keys.size + data.draw(st.integers(0, 20))) + 2, limits.EMPTY)
    limits.fill_linear(slots, keys[:there], np.arange(there))
    found = np.empty(keys.size, np.int64)
    limits.find_linear(slots, keys, found)
    assert found.tolist() == [i if i < there else -1 for i in range(keys.size)]
