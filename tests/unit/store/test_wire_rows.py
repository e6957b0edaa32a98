"""Rows on the wire: the precision of encoding, and its plain twins."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persia_cli.store.wire_rows import decode_into, decode_rows, encode_rows, row_bytes
from tests import naive

WIRES = ("float32", "bfloat16", "float16")
DIMS = st.sampled_from([1, 3, 16, 17, 64])
EXTREMES = [0.0, -0.0, 1e-45, -1e-40, 2.0**-130, 1e-38, 65504.0, 3.4e38, -3.4e38]
FLOATS = st.sampled_from(EXTREMES) | st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def blocks(draw, values=FLOATS):
    """float32 [n, dim], read-only, each row with its own magnitude."""
    size, dim = draw(st.integers(0, 4)), draw(DIMS)
    few = draw(st.lists(values, min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.choice(np.array(few, np.float32), (size, dim))
    if draw(st.booleans()):
        with np.errstate(all="ignore"):
            rows = (rng.standard_normal((size, dim)) * 10.0 ** rng.integers(-44, 37, (size, 1))).astype(np.float32)
    rows.flags.writeable = False
    return rows


@given(blocks(), st.sampled_from(WIRES))
@example(np.array([[3.401993e38]], np.float32), "float16")
def test_decoded_rows_are_within_the_stated_bounds(rows, wire):
    block = encode_rows(rows, wire)
    assert block.shape == (len(rows), row_bytes(rows.shape[1], wire))
    back = decode_rows(block, rows.shape[1], wire).astype(np.float64)
    sizes = np.abs(rows.astype(np.float64))
    if wire == "float32":
        bounds = np.zeros_like(sizes)
    elif wire == "bfloat16":
        bounds = sizes * 2.0**-8 + 2.0**-134
        # The greatest values round up to infinity, as everywhere.
        back[sizes > 3.3895e38] = rows[sizes > 3.3895e38]
    else:
        greatest = sizes.max(axis=1, keepdims=True, initial=0)
        bounds = np.maximum(sizes * 2.0**-11, greatest * 2.0**-39) + 2.0**-150
        # So do these, by half a unit of the eleven bits of a value.
        nearly_infinite = sizes > np.finfo(np.float32).max * (1 - 2.0**-12)
        back[nearly_infinite] = rows[nearly_infinite]
    assert (np.abs(back - rows) <= bounds).all()


@given(blocks())
def test_bfloat16_equals_the_naive_twin(rows):
    back = decode_rows(encode_rows(rows, "bfloat16"), rows.shape[1], "bfloat16")
    np.testing.assert_array_equal(back, naive.to_bfloat16(rows))


@given(blocks())
def test_float16_equals_the_naive_twin_byte_for_byte(rows):
    block = encode_rows(rows, "float16")
    for row, encoded in zip(rows, block, strict=True):
        factor, halves = naive.to_float16_row(row)
        assert encoded[:4].tobytes() == factor.tobytes()
        assert encoded[4:].tobytes() == halves.tobytes()
    back = decode_rows(block, rows.shape[1], "float16")
    for row, decoded in zip(rows, back, strict=True):
        factor, halves = naive.to_float16_row(row)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(decoded, halves.astype(np.float32) * factor)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 7, 16])
def test_a_row_with_nan_or_infinity_affects_no_other(bad, column):
    rows = np.ones((3, 17), np.float32)
    rows[1, column] = bad
    scaled = decode_rows(encode_rows(rows, "float16"), 17, "float16")
    assert np.isnan(scaled[1]).all()
    assert (scaled[[0, 2]] == 1).all()
    single = decode_rows(encode_rows(rows, "bfloat16"), 17, "bfloat16")
    np.testing.assert_array_equal(single, rows)


@given(blocks(), st.sampled_from(WIRES), st.integers(0, 4), st.integers(0, 3))
def test_blocks_of_several_servers_decode_into_one(rows, wire, cut, offset):
    block = encode_rows(rows, wire)
    # A frame may begin at any byte.
    memory = np.empty(block.nbytes + offset, np.uint8)
    moved = memory[offset:].reshape(block.shape)
    moved[...] = block
    moved.flags.writeable = False
    out = np.full(rows.shape, np.nan, np.float32)
    decode_into([moved[:cut], moved[cut:]], rows.shape[1], wire, out)
    np.testing.assert_array_equal(out, decode_rows(block, rows.shape[1], wire))


@pytest.mark.parametrize("wire", WIRES)
def test_rows_of_another_size_are_refused(wire):
    block = encode_rows(np.ones((2, 4), np.float32), wire)
    with pytest.raises(ValueError, match=f"{wire} rows of dim 5 have"):
        decode_rows(block, 5, wire)
    with pytest.raises(ValueError, match=f"{wire} rows of dim 5 have"):
        decode_into([block], 5, wire, np.empty((2, 5), np.float32))
    with pytest.raises(ValueError, match="there are 2 rows, but 3 are needed"):
        decode_into([block], 4, wire, np.empty((3, 4), np.float32))
