"""Rows of 8 bits: their kernels against plain twins, to the bit, and the scale that keeps what was rounded once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from persia_cli.kernels.rows import rows
from tests import naive

SPECIAL = [0.0, -0.0, 1e-45, 1e-38, 2.0**-126, 127 * 2.0**121, 3.4e38, np.inf, np.nan]
ROWS = st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=1, max_size=40)
ORDINARY = st.floats(-8, 8, width=32).filter(lambda value: value == 0 or abs(value) > 1e-30)


@njit(error_model="numpy")
def pack(arena, noise, randomly):
    if randomly:
        rows.pack_line(arena, 0, True, noise)
    else:
        rows.pack_line(arena, 0, False, noise)


@njit(error_model="numpy")
def unpack(arena, values):
    for column in range(np.uint64(0), arena.dim, rows.LANES):
        lanes = np.int64(arena.dim - column)
        rows.store(values, column, rows.embedding_lanes(arena, np.uint64(0), column, lanes), lanes)


def packed(row, noise=None):
    """The words of a row after the kernel packed it, and the row that it then reads."""
    row = np.array(row, np.float32)
    words = 1 + -(-row.size // 4)
    sizes = (np.uint64(words), np.uint64(row.size), np.uint64(words))
    arena = rows.RowArena(np.zeros(words, np.float32), *sizes, rows.INT8, row)
    pack(arena, np.uint32(noise or 0), noise is not None)
    back = np.empty_like(row)
    unpack(arena, back)
    return arena.arena.tobytes(), back


@given(ROWS, st.none() | st.integers(0, 2**32 - 1))
def test_packed_rows_equal_their_twin_and_keep_their_bits_when_packed_again(row, noise):
    words, back = packed(row, noise)
    scale, numbers = naive.to_int8_row(np.array(row, np.float32), noise)
    np.testing.assert_array_equal(back, naive.int8_values(scale, numbers))
    assert words[4:] == numbers.tobytes() + bytes(-numbers.size % 4)
    for again in (None, 7, 2**31):
        assert packed(back, again)[0] == words


@given(st.lists(ORDINARY, min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_the_greatest_value_stays_and_others_become_a_neighbour(row, noise):
    row = np.array(row, np.float32)
    _, back = packed(row, noise)
    greatest = float(np.abs(row).max())
    assert np.abs(back - row.astype(np.float64)).max() <= greatest / 127 * (1 + 2.0**-20)
    assert abs(np.abs(back).max() - greatest) <= greatest * 2.0**-22
