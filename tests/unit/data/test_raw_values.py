"""The steps by which columns are made of what a source has."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from persia_cli.config.schema.raw import RawColumns
from persia_cli.data.ids import text_id
from persia_cli.data.raw_values import column_of_request, log_buckets, made_of

VALUES = np.array([-5, 0, 1, 2, 3, 10, 1_000_000])


def raw(*steps: Any, **keys: Any) -> RawColumns:
    """A column `n` that is made by these steps."""
    return RawColumns.model_validate({"columns": ["n"], "read": "integer", "steps": steps} | keys)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{"at_least": 0}, "float32", "log1p"], np.log1p(np.maximum(VALUES, 0).astype(np.float32))),
        ([{"subtract": 40}, {"divide": 15}], (VALUES - 40) / 15),
        ([{"floor_divide": 5}], VALUES // 5),
        (["log_buckets"], np.array([-5, 0, 1, 2, math.floor(math.log(3) ** 2), 5, 190])),
    ],
)
def test_numbers_become_what_the_steps_say(steps: list[Any], expected: np.ndarray[Any, Any]) -> None:
    found = made_of(raw(*steps), "n", VALUES)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(column_of_request(raw(*steps), "n", pa.array(VALUES)).to_numpy(), expected)


def test_numbers_as_categories_are_hashed_as_text() -> None:
    expected = [text_id("n", str(value)) for value in VALUES.tolist()]
    assert made_of(raw("text"), "n", VALUES).to_pylist() == expected
    given = pa.array([*VALUES.tolist(), None])
    assert column_of_request(raw("text"), "n", given).to_pylist() == [*expected, None]
    assert column_of_request(raw("text", missing=10), "n", given).to_pylist() == [*expected, text_id("n", "10")]


def test_buckets_of_logarithms() -> None:
    assert log_buckets(VALUES).tolist() == [-5, 0, 1, 2, math.floor(math.log(3) ** 2), 5, 190]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"steps": ["text", "log1p"]}, "makes an id, and must be the last one"),
        ({"read": "text", "steps": ["log1p"]}, "steps and missing are for numbers"),
        ({"steps": [{"multiply": 3}]}, "multiply"),
    ],
)
def test_declarations_without_sense_are_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        raw(**keys)
