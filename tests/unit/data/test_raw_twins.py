"""A request's value becomes, to the bit, what preparation makes of the same text in a file, or both refuse it."""

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.prepare.recipe import kinds_of
from persia_cli.data.prepare.text import TextFormat
from persia_cli.data.read.kinds import SKIP
from persia_cli.data.read.raw_values import column_of_request
from tests.support.text_files import block_of_text

NUMBER_STEPS: list[list[Any]] = [
    [], [{"subtract": 40}, {"divide": 15}, "float32"], [{"at_least": 0}, "log1p"], ["float32"],
]  # fmt: skip
INTEGER_STEPS: list[list[Any]] = [
    *NUMBER_STEPS, [{"floor_divide": 5}, "text"], ["text"], ["log_buckets"], ["hours", {"remainder": 24}]
]  # fmt: skip
MISSING = st.sampled_from([{}, {"missing": 0}, {"missing": 7}])


def numbers(read: str, steps: list[list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda steps, missing: {"read": read, "steps": steps} | missing, st.sampled_from(steps), MISSING)


DECLARED = st.one_of(
    numbers("integer", INTEGER_STEPS),
    numbers("number", NUMBER_STEPS),
    st.sampled_from([{"read": "text"}, {"read": "text", "table": "item"}, {"read": "absence"}]),
    st.sampled_from([{"read": "hexadecimal"}, {"read": "hexadecimal", "digits": 2}]),
)
TEXTS = st.one_of(
    st.text("0123456789-+.eExXnaif é\0", max_size=6),
    st.integers(-(2**65), 2**65).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["", " ", "nan", "inf", "1e999", "0x1F", "14102123", " 39", " State-gov"]),
)
INTEGERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**54), 2**54), st.integers(0, 99), st.none())


def prepared(raw: RawColumns, text: str) -> tuple[Any, list[str]]:
    """The column that preparation makes of a file of one row, and why the row is bad."""
    reasons: list[str] = []
    kinds = {"first": SKIP} | kinds_of([raw])
    layout = TextFormat(kinds, stripped=raw.stripped)
    block = block_of_text(f"x\t{text}\n".encode(), layout, lambda lines, why: reasons.extend(why))
    with np.errstate(all="ignore"):
        made = block.made([raw])["n"]
    return made if isinstance(made, pa.Array) else pa.array(made), reasons


def requested(raw: RawColumns, given: Any) -> Any:
    """The column that a request with one value becomes, None if it is refused."""
    try:
        with np.errstate(all="ignore"):
            return column_of_request(raw, "n", given)
    except pa.ArrowException:
        return None


def require_same(raw: RawColumns, text: str, given: Any) -> None:
    (made, reasons), found = prepared(raw, text), requested(raw, given)
    if reasons == ["n is missing"]:
        assert found.to_pylist() == [None]  # whether that is an error is for the feature to say
    elif reasons:
        assert found is None, reasons
    else:
        assert found is not None
        assert found.type == made.type
        assert found.equals(made) or found.to_numpy(False).tobytes() == made.to_numpy(False).tobytes()


@given(DECLARED, st.booleans(), TEXTS)
@example({"read": "text"}, True, " State-gov")
@example({"read": "integer"}, False, "0x1F")
@example({"read": "integer"}, False, " 39")
@example({"read": "number", "missing": 3}, False, "inf")
@example({"read": "number", "missing": 3}, False, "nan")
@example({"read": "number"}, True, " ")
@example({"read": "absence"}, False, "nan")
@example({"read": "absence"}, False, " ")
@example({"read": "absence"}, True, " ")
def test_texts_of_requests_are_read_as_those_of_files(keys: dict[str, Any], stripped: bool, text: str) -> None:
    raw = RawColumns.model_validate({"columns": ["n"], "stripped": stripped} | keys)
    require_same(raw, text, pa.array([text]))


@given(DECLARED.filter(lambda keys: keys["read"] in ("integer", "number")), INTEGERS)
@example({"read": "number"}, 2**53 + 1)
@example({"read": "integer"}, 10**18)
@example({"read": "integer", "missing": 0}, None)
def test_integers_of_requests_become_what_their_digits_in_a_file_do(keys: dict[str, Any], value: int | None) -> None:
    raw = RawColumns.model_validate({"columns": ["n"]} | keys)
    kind = pa.uint64() if value is not None and value >= 2**63 else pa.int64()
    require_same(raw, "" if value is None else str(value), pa.array([value], kind))


@given(DECLARED.filter(lambda keys: keys["read"] == "integer"), st.floats(width=32) | st.integers(0, 2**25).map(float))
def test_floats_for_integers_are_exact_or_refused(keys: dict[str, Any], value: float) -> None:
    """2^24 as float32 may have been 2^24 + 1."""
    raw = RawColumns.model_validate({"columns": ["n"]} | keys)
    given = pa.array([np.float32(value)])
    if np.isnan(value):
        require_same(raw, "", given)
    elif value.is_integer() and abs(value) < 2**24:
        require_same(raw, str(int(value)), given)
    else:
        assert requested(raw, given) is None


@given(
    st.sampled_from(["|", "||", ", "]), st.booleans(),
    st.lists(st.lists(st.none() | st.text("ab| ,\0", max_size=4), max_size=4) | st.none(), min_size=1, max_size=3),
)  # fmt: skip
@example("|", False, [["a|b"]])
@example("||", False, [["a|", "b"]])
@example("|", False, [["a\0"], ["b"]])
@example("|", True, [[" a ", "", None], None, []])
def test_lists_of_texts_become_what_a_file_with_them_does(
    separator: str, stripped: bool, lists: list[list[str | None] | None]
) -> None:
    keys = {"columns": ["n"], "read": "texts", "separator": separator, "stripped": stripped}
    raw = RawColumns.model_validate(keys)
    found = requested(raw, pa.array(lists, pa.list_(pa.string())))
    whole = [prepared(raw, separator.join(text or "" for text in each or [])) for each in lists]
    if any(reasons for _, reasons in whole):
        assert found is None
    elif found is None:
        texts = [text or "" for each in lists for text in each or []]
        assert any(separator[0] in text for text in texts) or (stripped and separator != separator.strip())
    else:
        assert found.to_pylist() == [made.to_pylist()[0] for made, _ in whole]


def raw(*steps: Any, **keys: Any) -> RawColumns:
    """A column `n` that is made by these steps."""
    return RawColumns.model_validate({"columns": ["n"], "read": "integer", "steps": steps} | keys)


def test_hours_of_no_time_are_refused_and_missing_ones_are_null() -> None:
    hour = raw("hours", {"remainder": 24}, field="hour")
    day = raw("hours", {"floor_divide": 24}, field="hour")
    given = pa.array([14102123, None, 24022900, 70010100])
    assert column_of_request(hour, "n", given).to_pylist() == [23, None, 0, 36524 * 24 % 24]
    days = [None if each is None else (date(*each) - date(1970, 1, 1)).days
            for each in ((2014, 10, 21), None, (2024, 2, 29), (2070, 1, 1))]  # fmt: skip
    assert column_of_request(day, "n", given).to_pylist() == days
    for wrong in (14133100, 14022900, 14102124, -1, 10**8, 0):
        with pytest.raises(pa.ArrowInvalid, match=f"{wrong}: hour is not a YYMMDDHH time"):
            column_of_request(hour, "n", pa.array([14102123, wrong]))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"steps": ["text", "log1p"]}, "makes an id, and must be the last one"),
        ({"read": "text", "steps": ["log1p"]}, "steps and missing are for numbers"),
        ({"steps": [{"multiply": 3}]}, "multiply"),
        ({"steps": [{"remainder": 0}]}, "remainder"),
        ({"read": "texts"}, "texts have a separator"),
        ({"separator": "|"}, "texts have a separator"),
        ({"read": "texts", "separator": ""}, "separator"),
        ({"steps": [{"subtract": 1e30}]}, "does not fit into the 64 bits of integers"),
        ({"steps": [{"remainder": 10**30}]}, "does not fit into the 64 bits of integers"),
        ({"missing": -1e19}, "does not fit into the 64 bits of integers"),
        ({"table": "item"}, "hashed under the name of a table"),
    ],
)
def test_declarations_without_sense_are_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        raw(**keys)
