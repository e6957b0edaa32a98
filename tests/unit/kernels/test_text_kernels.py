"""Delimited text against its plain twin: splitting, typed fields, and what is wrong."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persia_cli.kernels import fields
from persia_cli.kernels.text import BLANK, COMMENT, NONE, OPEN_QUOTE, parse_lines
from tests import naive_text

KINDS = {
    "skip": fields.SKIP,
    "integer": fields.INTEGER,
    "hexadecimal": fields.HEXADECIMAL,
    "number": fields.NUMBER,
    "text": fields.TEXT,
    "bytes": fields.BYTES,
}
STATES = {
    fields.GOOD: "good",
    fields.MISSING: "missing",
    fields.ESCAPED: "escaped",
    fields.LONG_NUMBER: "long number",
    fields.WRONG: "wrong",
    fields.NOT_UTF8: "not utf-8",
    fields.NUL: "nul",
    fields.TOO_LONG: "too long",
}
OTHERS = {int(BLANK): "blank", int(OPEN_QUOTE): "quote", int(COMMENT): "comment"}


def parse(data, kinds, parameters=None, delimiter=b"\t", quoted=False, stripped=False, comment=None):
    """What the kernel makes of lines, in the words of the twin: rows of (line, [(state, 64 bits)]), and others."""
    rules = [*delimiter, *[NONE] * (2 - len(delimiter)), ord('"') if quoted else NONE, *(comment or [NONE]), stripped]
    capacity = data.count(b"\n")
    values, states = np.empty((len(kinds), capacity), np.uint64), np.empty((len(kinds), capacity), np.uint8)
    lines, reasons, counts = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(3, np.int64)
    parse_lines(
        np.frombuffer(data, np.uint8), np.array(rules, np.uint64), np.array([KINDS[kind] for kind in kinds], np.uint8),
        np.array(parameters or [0] * len(kinds), np.uint64), values.reshape(-1), states.reshape(-1), lines, reasons,
        counts,
    )  # fmt: skip
    number, others, wrong = counts.tolist()
    assert number + others == capacity
    assert wrong == int((states[:, :number] >= fields.WRONG).any(axis=0).sum())
    rows = [
        (
            int(lines[row]),
            [(STATES[state], int(bits)) for state, bits in zip(states[:, row], values[:, row], strict=True)],
        )
        for row in range(number)
    ]
    told = zip(lines[::-1][:others].tolist(), reasons[::-1][:others].tolist(), strict=True)
    return rows, {line: OTHERS.get(reason, reason) for line, reason in told}


def text_at(data, place):
    return data[place >> 32 :][: place & 2**32 - 1]


def check(kind, parameter, field):
    """One field between two others; its state and value are those of the twin."""
    line = b"\t".join([b"1", field, b"2"]) + b"\n"
    rows, others = parse(line, ["integer", kind, "integer"], [0, parameter, 0])
    assert others == {}
    [(_, [_, (state, bits), last])] = rows
    assert last == ("good", 2)
    expected_state, expected = naive_text.value_of(kind, parameter, field, False)
    if state == "long number":
        assert expected_state == "good"
        assert text_at(line, bits) == field
        return
    assert state == expected_state
    if expected is None:
        return
    if kind == "number":
        assert struct.pack("<Q", bits) == struct.pack("<d", expected)
    elif kind == "bytes":
        assert text_at(line, bits) == expected
    else:
        assert bits == expected % 2**64


PIECES = st.sampled_from(
    [b"a", b"1", b"", b" ", b'"', b'""', b"\t", b",", b"::", b":", b"\r", b"#", b"\0", b"\xc3\xa9"]
)
LINES = st.lists(st.lists(PIECES, max_size=7).map(b"".join), max_size=6)


@given(LINES, st.sampled_from([b"\t", b",", b"::"]), st.booleans(), st.booleans(), st.sampled_from([None, b"#"]))
@example([b'"a"x,1', b'"a', b'"a""', b'"a"""', b'"",1', b'"a"\r', b' "a" , 1 '], b",", True, True, None)
@example([b"a::1", b"::", b":::1", b"a:1"], b"::", False, False, None)
def test_lines_are_split_as_the_naive_twin_does(lines, delimiter, quoted, stripped, comment):
    data = b"".join(line + b"\n" for line in lines)
    rows, others = parse(data, ["bytes", "bytes"], None, delimiter, quoted, stripped, comment)
    expected_rows, expected_others = naive_text.split_lines(data, 2, delimiter, quoted, stripped, comment)
    assert others == expected_others
    assert [line for line, _ in rows] == [line for line, _ in expected_rows]
    for (_, row), (_, fields_) in zip(rows, expected_rows, strict=True):
        for (state, bits), (field, escaped) in zip(row, fields_, strict=True):
            expected, _ = naive_text.value_of("bytes", 0, field, escaped)
            assert state == expected
            if state in ("good", "escaped"):
                assert text_at(data, bits) == field


INTEGERS = st.one_of(st.integers(-(10**18) + 1, 10**18 - 1).map(str), st.text("0123456789-+ .", max_size=20))


@given(INTEGERS.map(str.encode))
@example(b"-")
@example(b"9" * 18)
@example(b"9" * 19)
def test_integers(field):
    check("integer", 0, field)


@given(st.text("0123456789abcdefABCDEFg", max_size=18).map(str.encode), st.sampled_from([0, 8]))
@example(b"FFFFFFFF", 8)
@example(b"f" * 16, 0)
def test_hexadecimal_ids(field, digits):
    check("hexadecimal", digits, field)


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=4).map(str),
    st.text("0123456789.eE+-", max_size=12),
)


@given(NUMBERS.map(str.encode))
@example(b"9007199254740993")
@example(b"0." + b"0" * 30 + b"1")
@example(b"1e")
@example(b"-0")
@example(b"1e999")
def test_numbers_are_exact_or_left_to_the_caller(field):
    check("number", 0, field)


@given(st.binary(max_size=24), st.integers(0, 2**64 - 1))
@example("ééé€𝄞".encode(), 1)
@example(b"\xed\xa0\x80", 0)
@example(b"\xf4\x90\x80\x80", 0)
@example(b"\xc0\x80", 0)
@example(b"12345678\xff", 0)
@example(b"1234567\x0089", 0)
def test_text_is_checked_and_hashed(field, seed):
    field = field.replace(b"\t", b"").replace(b"\n", b"").replace(b"\r", b"")
    check("text", seed, field)
    check("bytes", seed, field)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_field_has_a_greatest_length(kind):
    for size, too_long in ((65536, False), (65537, True)):
        rows, _ = parse(b"1" * size + b"\n", [kind])
        assert (rows[0][1][0][0] == "too long") is too_long
