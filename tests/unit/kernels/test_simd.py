"""The sixteen lanes against numpy, and their roundings against plain twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from persia_cli.kernels.rows import halves
from persia_cli.kernels.toolchain import simd
from tests import naive

LANES = st.integers(-1, 20)
SPECIAL = [0.0, -0.0, 1e-45, 6e-8, 2.0**-14, 65504.0, 65520.0, 3.4e38, np.inf, -np.inf, np.nan]
VALUES = st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=16, max_size=16)
FINITE = st.sampled_from(SPECIAL[:8]) | st.floats(width=32, allow_nan=False, allow_infinity=False)


def compiled(function):
    return njit(error_model="numpy")(function)


def same(one, other):
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@compiled
def halve(values, lanes, short, float16):
    if float16:
        halves.store_float16(short, 1, simd.load(values, 0, np.int64(16)), lanes)
    else:
        halves.store_bfloat16(short, 1, simd.load(values, 0, np.int64(16)), lanes)


@compiled
def widen(short, lanes, values, float16):
    if float16:
        simd.store(values, 0, halves.load_float16(short, 1, lanes), np.int64(16))
    else:
        simd.store(values, 0, halves.load_bfloat16(short, 1, lanes), np.int64(16))


@given(VALUES, LANES)
@pytest.mark.parametrize("float16", [True, False])
def test_halves_are_rounded_to_nearest_and_widened_back(float16, values, lanes):
    values, short, back = np.array(values, np.float32), np.full(20, 9, np.uint16), np.empty(16, np.float32)
    kept = min(max(lanes, 0), 16)
    halve(values, lanes, short, float16)
    assert (np.delete(short, slice(1, 1 + kept)) == 9).all()
    widen(short[: 1 + kept], lanes, back, float16)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16).astype(np.float32) if float16 else naive.to_bfloat16(values)
    same(back[:kept], expected[:kept])
    assert not back[kept:].any()


@compiled
def round_at_random(values, lanes, start, column, short, float16):
    x = simd.load(values, 0, np.int64(16))
    if float16:
        halves.store_float16_at_random(short, 1, x, lanes, start, column)
    else:
        halves.store_bfloat16_at_random(short, 1, x, lanes, start, column)


def rounded_at_random(values, start, column, float16):
    short, back = np.zeros(17, np.uint16), np.empty(16, np.float32)
    round_at_random(values, np.int64(16), np.uint32(start), column, short, float16)
    widen(short, np.int64(16), back, float16)
    return back


@given(st.lists(FINITE, min_size=16, max_size=16), st.integers(0, 2**32 - 1), st.integers(0, 1000))
@pytest.mark.parametrize("float16", [True, False])
def test_random_rounding_equals_its_naive_twin_and_gives_a_neighbour(float16, values, start, column):
    values = np.array(values, np.float32)
    twin = naive.to_float16_at_random if float16 else naive.to_bfloat16_at_random
    back = rounded_at_random(values, start, column, float16)
    with np.errstate(over="ignore"):
        same(back, [twin(value, start, column + lane) for lane, value in enumerate(values)])
    bound = np.clip(values, -65504, 65504) if float16 else values
    step = naive.spacing(bound, 11, 2.0**-24) if float16 else naive.spacing(bound, 8, 2.0**-133)
    within = np.isfinite(back)
    # In float64 a value near 0 may be as far from its neighbour as 0 is.
    assert (np.abs(back.astype(np.float64) - bound)[within] <= step[within]).all()
    same(back, rounded_at_random(values, start, column, float16))
