"""Requests to load a server with: candidates of golden samples, and of values that are made up where those have none.

Golden samples have ids and numbers as the network reads them, which are those of requests too, unless a field is text,
or is transformed. Such fields get values made up, whose ids have no rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.load.order import SentRequest
from persia_cli.data.read.batch import Batch
from persia_cli.errors import UserError
from persia_cli.serving.description import ModelInput
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.golden import read_golden
from persia_cli.serving.http.answers import inferred
from persia_cli.serving.http.requests import LENGTHS, RequestReader
from persia_cli.serving.http.tensors import NUMBERS
from persia_cli.serving.predictor import Predictor
from persia_cli.serving.row_reader import Inputs

POOL = 256
"""Samples of which requests are made where a model has no golden ones."""
MADE_UP = 1000
"""Distinct values made up for a field."""
Values = Sequence[Any] | NDArray[Any]
_HEAD = msgspec.json.Encoder()


class RequestForm(NamedTuple):
    """The format of the requests."""

    candidates: int
    user: frozenset[str]
    """Fields that have one row for all candidates."""
    is_binary: bool


class PreparedRequest(NamedTuple):
    """A request, its answer, and what the network alone gets for it."""

    sent: SentRequest
    inputs: Inputs


class Pool(NamedTuple):
    """The values of some samples, of which requests are made."""

    samples: int
    values: Mapping[str, Values]
    """By field: a value for each sample, or a list of ids."""
    made_up: list[str]
    """Fields that have no golden values."""


def user_fields(inputs: Sequence[ModelInput], asked: str | None) -> frozenset[str]:
    """Return the fields that `asked` names, or the first half if it is None; raises UserError for others."""
    names = [each.name for each in inputs]
    if asked is None:
        return frozenset(names[: len(names) // 2])
    if asked == "none" and "none" not in names:
        return frozenset()
    wanted = [each.strip() for each in asked.split(",") if each.strip()]
    if wrong := [each for each in wanted if each not in names]:
        raise UserError(f"--user {asked}: the model has no field {wrong[0]}; it has {', '.join(names)}")
    return frozenset(wanted)


def pool_of(predictor: Predictor) -> Pool:
    """Return values of the fields of a model."""
    golden, fields = read_golden(predictor.folder, predictor.description).batch, predictor.fields
    known = _golden_values(golden, fields, [each.name for each in predictor.description.features])
    samples, draw = golden.size or POOL, np.random.default_rng(1)
    hexadecimal = {
        each.field_of(column) for each in fields.raw if each.read == "hexadecimal" for column in each.columns
    }
    values, made_up = {}, []
    for each in predictor.description.inputs:
        if golden.size and each.name in known:
            values[each.name] = known[each.name]
        else:
            made_up.append(each.name)
            form = "{:08x}" if each.name in hexadecimal else fields.times.get(each.name, "word-{}")
            values[each.name] = _made_up(each, form, samples, draw)
    return Pool(samples, values, made_up)


def _golden_values(batch: Batch, fields: RequestFields, features: Sequence[str]) -> dict[str, Values]:
    raw = {column for each in fields.raw for column in each.columns}
    found: dict[str, Values] = {}
    for feature in fields.sparse:
        if feature.column_name in raw or feature.ids in ("text", "time") or feature.buckets is not None:
            continue
        begin = features.index(feature.name) * batch.size
        bounds = batch.offsets[begin : begin + batch.size + 1].astype(np.int64)
        ids = batch.ids[bounds[0] : bounds[-1]]
        if feature.name in fields.lists:
            found[feature.column_name] = np.split(ids, (bounds - bounds[0])[1:-1])
        elif ids.size == batch.size:
            found[feature.column_name] = ids
    column = 0
    for each in fields.dense:
        if each.name not in raw and each.transform is None:
            own = batch.dense[:, column : column + each.inputs]
            found[each.name] = own[:, 0] if each.width is None else list(own)
        column += each.inputs
    return found


def _made_up(field: ModelInput, form: str, samples: int, draw: np.random.Generator) -> Values:
    """Return numbers, or texts that `form` makes of them."""
    numbers = draw.integers(0, MADE_UP, samples)
    if field.datatype == "BYTES":
        values: Values = [form.format(each) for each in numbers.tolist()]
    else:
        values = numbers.astype(NUMBERS[field.datatype])
    return [[each] for each in values] if len(field.shape) == 2 else values


def prepared(predictor: Predictor, pool: Pool, form: RequestForm, count: int, seed: int = 0) -> list[PreparedRequest]:
    """Return requests with the answers that the model gives in this process; raises UserError for one it refuses."""
    draw = np.random.default_rng(seed)
    model = predictor.description
    reader = RequestReader(model.inputs, model.outputs, form.candidates)
    found = []
    for _ in range(count):
        candidates, user = draw.integers(0, pool.samples, form.candidates), draw.integers(0, pool.samples, 1)
        head, parts = _body(model.inputs, pool, form, candidates, user)
        body = head + b"".join(parts)
        length = str(len(head)).encode() if form.is_binary else None
        question = reader.infer(body, length)
        batch = predictor.fields.batch(question.columns)
        inputs = predictor.inputs(batch, np.zeros(len(model.features), np.int64))
        answer = inferred(model, question, predictor.predict(batch)).body
        found.append(PreparedRequest(SentRequest(_wire(model.name, body, length), answer), inputs))
    return found


def _body(
    inputs: Sequence[ModelInput], pool: Pool, form: RequestForm, candidates: NDArray[Any], user: NDArray[Any]
) -> tuple[bytes, list[bytes]]:
    """Return the JSON of a request, and the bytes behind it."""
    told: list[dict[str, Any]] = []
    parts: list[bytes] = []

    def add(name: str, datatype: str, values: Any) -> None:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [len(values)]}
        if form.is_binary:
            parts.append(_bytes(datatype, values))
            tensor["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            tensor["data"] = values.tolist() if isinstance(values, np.ndarray) else values
        told.append(tensor)

    for each in inputs:
        chosen = [pool.values[each.name][row] for row in (user if each.name in form.user else candidates)]
        if len(each.shape) == 2:
            add(each.name + LENGTHS, "INT32", np.array([len(ids) for ids in chosen], np.int32))
            chosen = [value for ids in chosen for value in ids]
        values = chosen if each.datatype == "BYTES" else np.array(chosen, NUMBERS[each.datatype])
        add(each.name, each.datatype, values)
    return _HEAD.encode({"inputs": told, "parameters": {"binary_data_output": form.is_binary}}), parts


def _bytes(datatype: str, values: Any) -> bytes:
    if datatype != "BYTES":
        return bytes(values.tobytes())
    texts = [text.encode() for text in values]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _wire(model: str, body: bytes, head_length: bytes | None) -> bytes:
    lines = [
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1".encode(),
        b"host: localhost",
        b"content-length: %d" % len(body),
    ]
    if head_length is None:
        lines.append(b"content-type: application/json")
    else:
        lines += [b"content-type: application/octet-stream", b"inference-header-content-length: " + head_length]
    return b"\r\n".join([*lines, b"", body])
