"""Requests of declared fields become samples: everything is computed once more, value by value, in plain Python."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.config.schema.features import DenseFeature, SparseFeature
from persia_cli.config.schema.raw import RawColumns
from persia_cli.errors import DataError
from persia_cli.serving.description import ModelInput, ModelOutput
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.http.refused import RefusedRequestError
from persia_cli.serving.http.requests import RequestReader
from tests.naive_text import xxh64

WHOLE, DECIMAL = re.compile(r"-?[0-9]{1,18}"), re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,18})?")
HEXADECIMAL = re.compile(r"[0-9a-fA-F]{1,16}")
OUTPUTS = [ModelOutput("p", "p", "logistic")]


class WrongError(Exception):
    """A value that a file could not have."""


def hashed(table: str, text: str) -> int:
    return int(xxh64(text.encode(), xxh64(table.encode(), 0)))


def text_in(raw: RawColumns, value: Any) -> str | None:
    """The field of a file with this value: None if it is empty."""
    if value is None:
        return None
    text = str(value)
    if raw.stripped:
        text = text.strip(" ")
    if "\0" in text:
        raise WrongError
    return text or None


def number_in(raw: RawColumns, value: Any) -> int | float | None:
    """The value of a field that is read as a number."""
    if isinstance(value, str):
        text = text_in(raw, value)
        if text is None:
            return None
        if not (WHOLE if raw.read == "integer" else DECIMAL).fullmatch(text):
            raise WrongError
        value = int(text) if raw.read == "integer" else float(text)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if raw.read == "integer":
        if isinstance(value, float) and (not value.is_integer() or abs(value) >= 2**53):
            raise WrongError
        if abs(int(value)) >= 10**18:
            raise WrongError
        return int(value)
    if math.isinf(float(value)) and raw.read == "number":
        raise WrongError
    return float(value)


def stepped(raw: RawColumns, column: str, value: int | float) -> int | float:
    """The result of the steps for a number."""
    for step in raw.steps:
        if step == "text":
            return hashed(column, str(value))
        if step == "float32":
            value = float(np.float32(value))
        elif step == "log1p":
            value = math.log1p(value)
        elif step == "log_buckets":
            value = math.floor(math.log(value) ** 2) if value > 2 else value
        else:
            assert not isinstance(step, str)
            ((name, number),) = step.model_dump().items()
            number = int(number) if isinstance(value, int) and float(number).is_integer() else number
            match name:
                case "subtract":
                    value = value - number
                case "divide":
                    value = value / number
                case "floor_divide":
                    value = value // number
                case "remainder":
                    value = value % number
                case "at_least":
                    value = max(value, number)
    return value


def column_value(raw: RawColumns, column: str, value: Any) -> Any:
    """The value of a column, None if it is null."""
    table = raw.table or raw.field_of(column)
    match raw.read:
        case "text":
            text = text_in(raw, value)
            return None if text is None else hashed(table, text)
        case "hexadecimal":
            text = text_in(raw, value)
            if text is None:
                return None
            if not HEXADECIMAL.fullmatch(text) or (raw.digits and len(text) != raw.digits):
                raise WrongError
            return int(text, 16)
        case "absence":
            return float(number_in(raw, value) is None)
        case "texts":
            texts = [each for each in value or [] if each]
            if any(raw.separator in each or "\0" in each for each in texts):
                raise WrongError
            texts = [each.strip(" ") if raw.stripped else each for each in texts]
            return [hashed(table, each) for each in texts if each]
    number = number_in(raw, value)
    if number is None:
        if raw.missing is None:
            return None
        number = int(raw.missing) if raw.read == "integer" else float(raw.missing)
    return stepped(raw, column, number)


def expected(fields: RequestFields, rows: Sequence[Mapping[str, Any]]) -> tuple[list[list[float]], list[list[int]]]:
    """Dense inputs of each row, and ids of each feature and row; raises WrongError."""
    raw = fields.raw_by_column()

    def made(column: str, row: Mapping[str, Any]) -> Any:
        own = raw.get(column)
        return row[column] if own is None else column_value(own, column, row[own.field_of(column)])

    dense, ids = [], []
    for row in rows:
        own = []
        for each in fields.dense:
            value = made(each.name, row)
            value = fields.fill if value is None else value
            if value is None or not math.isfinite(np.float32(value)):
                raise WrongError
            own.append(float(np.float32(value)))
        dense.append(own)
    for feature in fields.sparse:
        for row in rows:
            value = made(feature.column_name, row)
            if feature.buckets is not None:
                value = feature.missing_id if value is None else 1 + sum(value >= bound for bound in feature.buckets)
            if isinstance(value, list):
                ids.append(value[-feature.max_length :] if feature.max_length else value)
            else:
                ids.append([feature.missing_id if value is None else int(value) % 2**64])
    return dense, ids


NUMBERS = {"integer": st.integers(-50, 10**6) | st.integers(-(10**18), 10**18), "number": st.integers(-50, 10**6)}
STEPS: list[list[Any]] = [
    [], ["float32"], [{"at_least": 0}, "log1p"], [{"at_least": 0}, "float32"], [{"subtract": 40}, {"divide": 15}],
    [{"floor_divide": 5}], [{"remainder": 24}],
]  # fmt: skip
ID_STEPS: list[list[Any]] = [[], [{"floor_divide": 5}, "text"], ["text"], ["log_buckets"], [{"remainder": 24}]]
DENSE = st.fixed_dictionaries(
    {"read": st.sampled_from(["integer", "number"]), "steps": st.sampled_from(STEPS)},
    optional={"missing": st.sampled_from([0, 7])},
) | st.just({"read": "absence"})
SPARSE = st.one_of(
    st.fixed_dictionaries({"read": st.just("integer"), "steps": st.sampled_from(ID_STEPS)},
                          optional={"missing": st.sampled_from([0, -3])}),
    st.fixed_dictionaries({"read": st.just("text")}, optional={"table": st.just("item"), "stripped": st.booleans()}),
    st.fixed_dictionaries({"read": st.just("hexadecimal")}, optional={"digits": st.just(2)}),
    st.fixed_dictionaries({"read": st.just("texts"), "separator": st.just("|")}, optional={"stripped": st.booleans()}),
)  # fmt: skip
TEXTS = st.text("ab é0", max_size=3)
VALUES = {
    "integer": st.none() | st.integers(-50, 10**6) | st.integers(-(10**18), 10**18),
    "number": st.none() | st.integers(-50, 10**6) | st.floats(-1e30, 1e30),
    "absence": st.none() | st.integers(0, 9),
    "text": st.none() | TEXTS,
    "hexadecimal": st.none() | st.text("0123456789abcdefAF", min_size=2, max_size=2),
    "texts": st.none() | st.lists(st.none() | TEXTS, max_size=4),
}
ODD: dict[str, st.SearchStrategy[Any]] = {
    "texts": st.lists(st.sampled_from(["a|b", "|", "a\0"]), max_size=2),
    "text": st.sampled_from(["a\0", "", " "]),
    "hexadecimal": st.sampled_from(["xy", "0x", "abc", "", "0123456789abcdef0"]),
}
ODD_NUMBERS = st.sampled_from(["", " 7", "0x1F", "1e400", "nan", "7.5", "-7", "007", "+7", "٣"])


@st.composite
def asked(draw: st.DrawFn) -> tuple[RequestFields, list[dict[str, Any]]]:
    """Declared fields, and rows of a request."""
    raw, dense, sparse, lists = [], [], [], []
    for number in range(draw(st.integers(1, 4))):
        is_dense = draw(st.booleans())
        keys: dict[str, Any] = draw(DENSE if is_dense else SPARSE)
        columns = [f"c{number}{letter}" for letter in "xyz"[: draw(st.integers(1, 3))]]
        if len(columns) == 1 and draw(st.booleans()):
            keys = keys | {"field": f"f{number}"}
        raw.append(RawColumns.model_validate({"columns": columns} | keys))
        for column in columns:
            if is_dense:
                dense.append(DenseFeature(name=column))
                continue
            given: dict[str, Any] = {"missing_id": draw(st.sampled_from([0, 5, 2**64 - 1]))}
            if keys["read"] == "texts":
                lists.append(column)
                given["max_length"] = draw(st.none() | st.integers(1, 2))
            sparse.append(SparseFeature(name=column, **given))
    fields = RequestFields(
        fill=draw(st.none() | st.just(-1.0)), dense=tuple(dense), sparse=tuple(sparse), raw=tuple(raw),
        lists=tuple(lists),
    )  # fmt: skip
    rows: list[dict[str, Any]] = [{} for _ in range(draw(st.integers(1, 4)))]
    for each in raw:
        for column in each.columns:
            whole = VALUES[each.read]
            as_text = draw(st.booleans()) and each.read in ("integer", "number", "absence")
            has_odd = draw(st.integers(0, 19)) == 0
            for row in rows:
                value = draw(whole)
                if value is not None and as_text:
                    value = str(value)
                if has_odd:
                    value = draw(ODD.get(each.read, ODD_NUMBERS))
                row[each.field_of(column)] = value
    return fields, rows


def bodies(fields: RequestFields, rows: Sequence[Mapping[str, Any]]) -> list[tuple[bool, bytes]]:
    """A request in rows, and in columns if possible: JSON has no lists of differing lengths but flat ones."""
    tensors: list[dict[str, Any]] = []
    for name, datatype, shape in fields.inputs():
        values = [row[name] for row in rows]
        if len(shape) == 2:
            if any(each is None for each in values):
                return [(True, json.dumps({"instances": rows}).encode())]
            tensors.append({"name": f"{name}.lengths", "datatype": "INT32", "shape": [len(rows)],
                            "data": [len(each) for each in values]})  # fmt: skip
            values = [value for each in values for value in each]
        tensors.append({"name": name, "datatype": datatype, "shape": [len(values)], "data": values})
    return [(True, json.dumps({"instances": rows}).encode()), (False, json.dumps({"inputs": tensors}).encode())]


@settings(max_examples=100)
@given(asked())
def test_samples_are_those_of_the_declarations(question: tuple[RequestFields, list[dict[str, Any]]]) -> None:
    fields, rows = question
    reader = RequestReader([ModelInput(*each) for each in fields.inputs()], OUTPUTS, 1000)
    try:
        dense, ids = expected(fields, rows)
    except WrongError:
        for is_rows, body in bodies(fields, rows):
            with pytest.raises((DataError, RefusedRequestError)):
                fields.batch((reader.rows(body) if is_rows else reader.infer(body, None)).columns)
        return
    for is_rows, body in bodies(fields, rows):
        batch = fields.batch((reader.rows(body) if is_rows else reader.infer(body, None)).columns)
        assert batch.size == len(rows)
        found = [batch.ids[begin:end].tolist() for begin, end in zip(batch.offsets, batch.offsets[1:], strict=False)]
        assert found == ids
        # The last bit of a logarithm depends on the library.
        np.testing.assert_array_max_ulp(
            batch.dense.reshape(len(rows), -1), np.array(dense, np.float32).reshape(len(rows), -1)
        )
