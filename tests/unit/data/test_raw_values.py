"""The steps by which columns are made of what a source has."""

import math
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.read.raw_values import column_of_request, made_of

VALUES = np.array([-5, 0, 1, 2, 3, 10, 1_000_000])


def refuse(wrong: np.ndarray[Any, Any], reason: str) -> None:
    assert not wrong.any(), reason


def raw(*steps: Any, **keys: Any) -> RawColumns:
    """A column `n` that is made by these steps."""
    return RawColumns.model_validate({"columns": ["n"], "read": "integer", "steps": steps} | keys)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{"at_least": 0}, "float32", "log1p"], np.log1p(np.maximum(VALUES, 0).astype(np.float32))),
        ([{"subtract": 40}, {"divide": 15}], (VALUES - 40) / 15),
        ([{"floor_divide": 5}], VALUES // 5),
        ([{"floor_divide": 5}, {"remainder": 3}], VALUES // 5 % 3),
        (["log_buckets"], np.array([-5, 0, 1, 2, math.floor(math.log(3) ** 2), 5, 190])),
    ],
)
def test_numbers_become_the_results_of_the_steps(steps: list[Any], expected: np.ndarray[Any, Any]) -> None:
    found = made_of(raw(*steps), "n", VALUES, refuse)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(column_of_request(raw(*steps), "n", pa.array(VALUES)).to_numpy(), expected)


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
    ("read", "given", "says"),
    [
        ("integer", pa.array([np.float32(25102101)]), "25102100 is beyond the whole numbers that float can represent"),
        ("integer", pa.array([1.5]), "1.5 is not a whole number"),
        ("integer", pa.array(["1", "0x1F"]), "'0x1F': n is not an integer of at most 18 digits"),
        ("number", pa.array([1.0, math.inf]), "inf is too large a number"),
        ("number", pa.array(["1", "nan"]), "'nan': n is not a number"),
        ("hexadecimal", pa.array([None, "xyz"]), "'xyz': n is not 1 to 16 hexadecimal digits"),
        ("text", pa.array(["a\0b"]), "holds a NUL byte"),
    ],
)
def test_values_that_a_file_may_not_have_are_refused_by_name(read: str, given: Any, says: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=says):
        column_of_request(raw(read=read), "n", given)
    with pytest.raises(TypeError, match="integer is of numbers, not date32"):
        column_of_request(raw(), "n", pa.array([date(2024, 1, 1)]))


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
