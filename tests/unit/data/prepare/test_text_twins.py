"""Delimited text against its plain twin: lines, fields, values, and what is wrong with them."""

import struct

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persia_cli.data.prepare.text import TextFormat
from persia_cli.data.read.ids import seed_of
from persia_cli.data.read.kinds import BYTES, INTEGER, NUMBER, TEXT, hexadecimal, values_of
from persia_cli.data.read.text import MARK
from tests import naive_text
from tests.support.text_files import block_of_text


class Log:
    """The lines that were rejected, and why."""

    def __init__(self):
        self.reasons = {}

    def reject(self, lines, reasons):
        reasons = reasons if len(reasons) > 1 else [*reasons] * len(lines)
        for line, reason in zip(lines.tolist(), reasons, strict=True):
            assert line not in self.reasons
            self.reasons[line] = reason


def parse(data, columns, **format):
    """The block of lines, and what was rejected."""
    log, form = Log(), TextFormat(columns, **format)
    block = block_of_text(b"\n" + data, form, log.reject)  # a mark is part of a line that is not the first
    if not form.blank_lines:
        assert log.reasons.pop(1) == "the line is empty"
    block.lines -= 2
    return block, {line - 2: reason for line, reason in log.reasons.items()}


REASONS = {
    "blank": "the line is empty",
    "quote": "a quote is not closed where its field ends",
    "return": "a carriage return is not at the end of its line",
}
PIECES = st.sampled_from(
    [b"a", b"1", b"", b" ", b'"', b'""', b"\t", b",", b"::", b":", b"\r", b"#", b"\xc3\xa9", b"\x01", MARK]
)
LINES = st.lists(st.lists(PIECES, max_size=7).map(b"".join), max_size=6)


@given(
    LINES,
    st.integers(1, 3),
    st.sampled_from([b"\t", b",", b"::"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, b"#"]),
)
@example([b'"a"x,1', b'"a', b'"a""', b'"a"""', b'"",1', b'"a"\r', b' "a" , 1 '], 2, b",", True, True, None)
@example([b'"a"x,1', b'"a', b'b",1', b'"a,""b",1', b'x"",""'], 2, b",", True, False, None)
@example([b"a::1", b"::", b":::1", b"a:1"], 2, b"::", False, False, None)
@example([b"a\rb\t1", b"\r", b"a\r", b"1\t\r\r", b"\r\t"], 2, b"\t", False, False, None)
@example([MARK + b"a\t1"], 2, b"\t", False, False, None)
@example([b" #", b"  ", b"", b"#"], 1, b"\t", False, True, b"#")
def test_lines_are_split_as_the_naive_twin_does(lines, columns, delimiter, quoted, stripped, comment):
    data = b"".join(line + b"\n" for line in lines)
    block, rejected = parse(
        data,
        {str(number): BYTES for number in range(columns)},
        delimiter=delimiter.decode(),
        quote='"' if quoted else None,
        stripped=stripped,
        comment=(comment or b"").decode(),
    )
    rows, others = naive_text.split_lines(data, columns, delimiter, quoted, stripped, comment)
    assert block.lines.tolist() == [line for line, _ in rows]
    for line, reason in others.items():
        if reason != "comment":
            told = rejected.pop(line)
            fields = (
                f"{reason} field{'s' if reason != 1 else ''} where there {'are' if columns > 1 else 'is'} {columns} "
            )
            assert told.startswith(REASONS.get(reason, fields))
    assert not rejected
    for number in range(columns):
        assert block.texts(str(number)).to_pylist() == [fields[number].decode() or None for _, fields in rows]


def check(kind, parameter, field):
    """One field between two others; its state and value are those of the twin."""
    block, rejected = parse(b"\t".join([b"1", field, b"2"]) + b"\n", {"a": INTEGER, "b": kind, "c": INTEGER})
    assert block.integers("c").tolist() == [2]
    state, expected = naive_text.value_of(kind.name, parameter, field)
    reasons = {"wrong": f"is not {kind.noun}", "nul": "holds a NUL byte", "not utf-8": "is not UTF-8"}
    assert rejected == ({0: f"b {reasons[state]}"} if state in reasons else {})
    [value] = block.values["b"].to_pylist()
    if state != "good":
        assert value is None
    elif kind is NUMBER:
        assert struct.pack("<d", value) == struct.pack("<d", expected)
    elif kind is BYTES:
        assert value.encode() == expected
    else:
        assert value == expected


INTEGERS = st.one_of(st.integers(-(10**18) + 1, 10**18 - 1).map(str), st.text("0123456789-+ .x", max_size=20))


@given(INTEGERS.map(str.encode))
@example(b"-")
@example(b"9" * 18)
@example(b"-" + b"9" * 18)
@example(b"9" * 19)
@example(b"0" * 19)
@example(b"0x1F")
@example(b"0X1f")
@example(b" 7")
def test_integers(field):
    check(INTEGER, 0, field)


@given(st.text("0123456789abcdefABCDEFg", max_size=18).map(str.encode), st.sampled_from([0, 8]))
@example(b"FFFFFFFF", 8)
@example(b"f" * 16, 0)
def test_hexadecimal_ids(field, digits):
    check(hexadecimal(digits), digits, field)


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=4).map(str),
    st.text("0123456789.eE+-", max_size=24),
)


@given(NUMBERS.map(str.encode))
@example(b"9007199254740993")
@example(b"0." + b"0" * 30 + b"1")
@example(b"1e")
@example(b"-0")
@example(b"1e999")
@example(b"nan")
@example(b"-inf")
@example(b"infinity")
@example(b"1e-0000000000000000001")
@example(b" 1.5")
def test_numbers_are_exact(field):
    check(NUMBER, 0, field)


@given(st.binary(max_size=24))
@example("ééé€𝄞".encode())
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xc0\x80")
@example(b"12345678\xff")
@example(b"1234567\x0089")
@example(b"\xff\0")
def test_text_is_checked_and_hashed(field):
    field = field.replace(b"\t", b"").replace(b"\n", b"").replace(b"\r", b"")
    check(TEXT, seed_of("b"), field)
    check(BYTES, 0, field)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.none(), INTEGERS.filter(bool), NUMBERS.filter(bool)), max_size=8))
def test_a_wrong_value_changes_no_other(texts):
    for kind in (INTEGER, NUMBER, hexadecimal(0), TEXT):
        values, flaws = values_of(kind, "a", pa.array(texts, pa.string()))
        for row, text in enumerate(texts):
            alone, found = values_of(kind, "a", pa.array([text], pa.string()))
            assert values[row].as_py() == alone[0].as_py()
            assert [reason for wrong, reason in flaws if wrong[row]] == [reason for wrong, reason in found if wrong[0]]
