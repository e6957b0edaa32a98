"""Requests for predictions: of the Open Inference Protocol, version 2, and rows in the style of version 1."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from persia_cli.errors import DataError, count, one_line
from persia_cli.serving.columns import Lists, columns_of
from persia_cli.serving.description import ModelInput, ModelOutput
from persia_cli.serving.http.refused import RefusedRequestError, bad
from persia_cli.serving.http.tensors import (
    NUMBERS,
    Tensor,
    Values,
    require_plain,
    values_in_bytes,
    values_in_json,
)
from persia_cli.serving.packed import PackedColumn, PackedColumns, PackedLayout

LENGTHS = ".lengths"
"""Suffix of the input with the number of ids of each sample in the input of this name."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Bytes with which some programs begin texts in UTF-8."""
FORMS, LARGEST_FORM = 64, 2**14
"""Maximum number of cached layouts of requests, and of bytes of the JSON of each."""
MAX_IDS = 2**22
"""Maximum number of ids in lists of a request: of all fields and samples; a list for all samples counts for each."""


class WantedOutput(msgspec.Struct):
    """An output that a request selects."""

    name: str
    parameters: dict[str, Any] | None = None


class _InferBody(msgspec.Struct):
    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[WantedOutput] | None = None


class _RowsBody(msgspec.Struct):
    instances: list[dict[str, Any]]


class Wanted(NamedTuple):
    """An output of the answer: its number among the model's, and whether its values are sent as bytes."""

    number: int
    is_binary: bool


class PredictionRequest(NamedTuple):
    """The content of a request."""

    columns: Mapping[str, Any]
    outputs: list[Wanted]
    id: str | None = None


class _Form(NamedTuple):
    """The JSON of a request, of which all inputs are numbers as bytes."""

    layout: PackedLayout
    outputs: list[Wanted]


_INFER = msgspec.json.Decoder(_InferBody)
_ROWS = msgspec.json.Decoder(_RowsBody)


class RequestReader:
    """Reads requests for one model."""

    def __init__(self, inputs: Sequence[ModelInput], outputs: Sequence[ModelOutput], most_samples: int) -> None:
        self._lists = {values.name: len(values.shape) == 2 for values in inputs}
        self._texts = {values.name for values in inputs if values.datatype == "BYTES"}
        self._lengths = {values.name + LENGTHS for values in inputs if len(values.shape) == 2}
        self._outputs = {output.name: number for number, output in enumerate(outputs)}
        self._most_samples = most_samples
        self._forms: dict[tuple[bytes, int], _Form] = {}

    def infer(self, body: bytes, header_length: bytes | None) -> PredictionRequest:
        """Return the request in a body of version 2; raises RefusedRequestError.

        `header_length` is the length of the JSON, which describes the tensors after it.
        """
        length = len(body) if header_length is None else _length(header_length, len(body))
        head = body[:length]
        form = self._forms.get((head, len(body)))
        if form is not None:
            return PredictionRequest(PackedColumns(body, form.layout), form.outputs)
        request = _decoded(_INFER, head)
        tensors = self._tensors(request.inputs, memoryview(body)[length:])
        columns = {
            name: self._column(tensor, values, tensors)
            for name, (tensor, values) in tensors.items()
            if name not in self._lengths
        }
        if alone := next((name for name in tensors if name in self._lengths and _stem(name) not in tensors), None):
            raise bad(f"input {alone} has the lengths of {_stem(alone)}, which is missing")
        self._require_size(columns)
        question = PredictionRequest(columns, self._wanted(request), request.id)
        self._keep_form(head, len(body), request, question)
        return question

    def _keep_form(self, head: bytes, size: int, request: _InferBody, question: PredictionRequest) -> None:
        """Cache the JSON part of a request, since a client sends many requests with the same one."""
        plain = all(tensor.binary_size is not None and tensor.datatype in NUMBERS for tensor in request.inputs)
        if not plain or self._lengths or request.id is not None or len(head) > LARGEST_FORM:
            return
        if len(self._forms) >= FORMS:
            self._forms.clear()
        begin, parts = len(head), []
        for tensor in request.inputs:
            parts.append(PackedColumn(tensor.name, NUMBERS[tensor.datatype], tensor.count, begin))
            begin += tensor.binary_size or 0
        self._forms[head, size] = _Form(PackedLayout(parts), question.outputs)

    def rows(self, body: bytes) -> PredictionRequest:
        """Return the request in a body of rows; raises RefusedRequestError."""
        rows = _decoded(_ROWS, body).instances
        self._require_samples(len(rows))
        for name in chain.from_iterable(rows):
            if name not in self._lists:
                raise self._unknown(name)
        try:
            columns = columns_of(rows, self._lists)
        except DataError as error:
            raise bad(str(error)) from None
        for name, values in columns.items():
            if not self._lists.get(name, False):
                require_plain(name, values)
                continue
            for value in values:
                if isinstance(value, str) and name in self._texts:
                    continue  # a list of one, or of several with a separator
                if value is not None and not isinstance(value, list):
                    raise bad(f"input {name} is a list of ids in each row, such as [7, 12]")
                require_plain(name, value or [])
        self._require_size(columns)
        return PredictionRequest(columns, [Wanted(number, False) for number in self._outputs.values()])

    def _tensors(self, given: list[Tensor], rest: memoryview) -> dict[str, tuple[Tensor, Values]]:
        tensors: dict[str, tuple[Tensor, Values]] = {}
        for tensor in given:
            if tensor.name not in self._lists and tensor.name not in self._lengths:
                raise self._unknown(tensor.name)
            tensor.require_shape()
            is_list = self._lists.get(tensor.name, False)
            if is_list:
                self._require_ids(f"input {tensor.name}", tensor.count)
            if not is_list or len(tensor.shape) == 2:
                self._require_samples(tensor.shape[0])
            if tensor.name in tensors:
                raise bad(f"input {tensor.name} is there twice")
            size = tensor.binary_size
            if size is None:
                tensors[tensor.name] = tensor, values_in_json(tensor)
                continue
            if size > len(rest):
                raise bad(f"input {tensor.name} has {size:,} bytes, and only {len(rest):,} are left of the body")
            tensors[tensor.name] = tensor, values_in_bytes(tensor, rest[:size])
            rest = rest[size:]
        if len(rest):
            raise bad(f"the body has {count(len(rest), 'byte')} behind its last input")
        return tensors

    def _column(self, tensor: Tensor, values: Values, tensors: Mapping[str, tuple[Tensor, Values]]) -> Any:
        name = tensor.name
        if not self._lists.get(name, False):
            if len(tensor.shape) == 2 and tensor.shape[1] != 1:
                raise bad(f"input {name} has one value for each sample, and the shape {tensor.shape} has more")
            return values
        given = tensors.get(name + LENGTHS)
        if given is None:
            if len(tensor.shape) == 1:
                raise bad(
                    f"input {name} has a list of ids for each sample: give it the shape [samples, ids], or all ids of "
                    f"all samples, and how many each has as input {name}{LENGTHS}"
                )
            return Lists(values, np.full(tensor.shape[0], tensor.shape[1], np.int64))
        shape, lengths = given[0].shape, given[1]
        if len(shape) == 2 and shape[1] != 1:
            raise bad(f"input {name}{LENGTHS} has one length for each sample, and the shape {shape} has more")
        if not isinstance(lengths, np.ndarray):
            lengths = np.array(lengths)  # of an empty list, or of values that are no numbers
        if lengths.size and lengths.dtype.kind not in "iu":
            raise bad(f"input {name}{LENGTHS} has values that are no whole numbers")
        if (lengths < 0).any() or (lengths > len(values)).any() or int(lengths.sum()) != len(values):
            raise bad(f"input {name} has {count(len(values), 'id')}, and {name}{LENGTHS} does not add up to that")
        return Lists(values, lengths.astype(np.int64))

    def _wanted(self, request: _InferBody) -> list[Wanted]:
        binary = _flag(request.parameters, "binary_data_output", "the request", False)
        if not request.outputs:
            return [Wanted(number, binary) for number in self._outputs.values()]
        outputs = []
        for wanted in request.outputs:
            if wanted.name not in self._outputs:
                raise bad(f"the model has no output {wanted.name[:100]!r}; it has {', '.join(self._outputs)}")
            is_binary = _flag(wanted.parameters, "binary_data", f"output {wanted.name}", binary)
            outputs.append(Wanted(self._outputs[wanted.name], is_binary))
        if len({output.number for output in outputs}) != len(outputs):
            raise bad("the request asks for an output twice")
        return outputs

    def _require_size(self, columns: Mapping[str, Any]) -> None:
        """Raise RefusedRequestError for a request of more samples, or more ids in lists, than allowed."""
        sizes = [len(column.lengths if isinstance(column, Lists) else column) for column in columns.values()]
        samples = max(sizes, default=0)
        self._require_samples(samples)
        total = 0
        for name, column in columns.items():
            if not self._lists.get(name, False):
                continue
            rows = len(column.lengths) if isinstance(column, Lists) else len(column)
            ids = len(column.values) if isinstance(column, Lists) else sum(len(value or ()) for value in column)
            ids_here = ids * (samples if rows == 1 else 1)
            self._require_ids(f"input {name}", ids_here)
            total += ids_here
        self._require_ids("the request", total)

    def _require_samples(self, samples: int) -> None:
        if samples > self._most_samples:
            raise RefusedRequestError(
                413, f"the request has {samples:,} samples, and {self._most_samples:,} are allowed; ask in several"
            )

    def _require_ids(self, what: str, ids: int) -> None:
        if ids > MAX_IDS:
            raise RefusedRequestError(
                413, f"{what} has {ids:,} ids in the lists of all samples, and {MAX_IDS:,} are allowed"
            )

    def _unknown(self, name: str) -> RefusedRequestError:
        known = ", ".join(self._lists)
        return bad(f"the request has a field {name[:100]!r}, which the model does not read; it reads {known}")


def _decoded(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body.removeprefix(BYTE_ORDER_MARK))
    except msgspec.ValidationError as error:
        raise bad(f"the request's JSON is not what it should be: {one_line(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(f"the body is no JSON: {one_line(error)}") from None
    except RecursionError:
        raise bad("the request's JSON is nested too deeply") from None


def _length(header: bytes, most: int) -> int:
    if not header.isdigit() or len(header) > 12 or int(header) > most:
        text = header.decode("latin-1")[:40]
        raise bad(f"Inference-Header-Content-Length is the length of the JSON, at most {most:,} bytes, not {text!r}")
    return int(header)


def _stem(name: str) -> str:
    return name.removesuffix(LENGTHS)


def _flag(parameters: Mapping[str, Any] | None, name: str, where: str, default: bool) -> bool:
    value = (parameters or {}).get(name, default)
    if not isinstance(value, bool):
        raise bad(f"{where}: {name} is true or false, not {value!r:.40}")
    return value
