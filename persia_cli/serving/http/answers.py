"""The answers of a server."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from persia_cli.serving.description import ModelDescription, ModelInput, ModelOutput
from persia_cli.serving.http.metrics import InferenceCounts
from persia_cli.serving.http.refused import RefusedRequestError
from persia_cli.serving.http.requests import PredictionRequest
from persia_cli.serving.predictor import Predictions
from persia_cli.version import __version__

JSON = "application/json"
PLATFORM = "persia_onnx"
MODEL_VERSION = "x-model-version"
"""Header of predictions: the version of the model that made them."""
_ENCODER = msgspec.json.Encoder()


class HttpAnswer(NamedTuple):
    """A response of HTTP."""

    status: int
    body: bytes
    kind: str = JSON
    headers: Mapping[str, str] = {}


def header_pairs(answer: HttpAnswer) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer."""
    headers = {"content-type": answer.kind, "content-length": str(len(answer.body)), **answer.headers}
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def in_json(value: Any) -> HttpAnswer:
    """Return an answer of JSON."""
    return HttpAnswer(200, _ENCODER.encode(value))


def refusal(error: RefusedRequestError) -> HttpAnswer:
    """Return the answer to a refused request."""
    return HttpAnswer(error.status, _ENCODER.encode({"error": str(error)}), JSON, error.headers)


def server_metadata() -> HttpAnswer:
    """Return the metadata of the server."""
    return in_json({"name": "persia", "version": __version__, "extensions": ["binary_tensor_data"]})


def model_metadata(model: ModelDescription) -> HttpAnswer:
    """Return the model's inputs and outputs."""
    return in_json(
        {
            "name": model.name,
            "versions": [version_of(model)],
            "platform": PLATFORM,
            "inputs": [
                {"name": field.name, "datatype": field.datatype, "shape": field.shape} for field in model.inputs
            ],
            "outputs": [
                {"name": output.name, "datatype": output.datatype, "shape": output.shape} for output in model.outputs
            ],
        }
    )


def model_status(model: ModelDescription) -> HttpAnswer:
    """Return the state of the model, in the format of TensorFlow Serving."""
    state = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    return in_json({"model_version_status": [{"version": version_of(model), **state}]})


def model_config(model: ModelDescription) -> HttpAnswer:
    """Return the configuration of the model, in the format of Triton; with a batch size of 0, dims are whole shapes."""

    def listed(parts: Sequence[ModelInput] | Sequence[ModelOutput]) -> list[dict[str, Any]]:
        kinds = {"BYTES": "STRING"}
        return [
            {"name": part.name, "data_type": f"TYPE_{kinds.get(part.datatype, part.datatype)}", "dims": part.shape}
            for part in parts
        ]

    about = {"name": model.name, "platform": PLATFORM, "max_batch_size": 0}
    return in_json({**about, "input": listed(model.inputs), "output": listed(model.outputs)})


def model_stats(model: ModelDescription, counts: InferenceCounts) -> HttpAnswer:
    """Return the counts of the model's requests since the start, of all workers, in the format of Triton."""
    statistics = {"success": {"count": counts.answered}, "fail": {"count": counts.refused}}
    about = {"name": model.name, "version": version_of(model), "inference_count": counts.samples}
    return in_json({"model_stats": [{**about, "execution_count": counts.answered, "inference_stats": statistics}]})


def version_of(model: ModelDescription) -> str:
    """Return the version of a model: its number if it was published, else the step at which it was saved."""
    return str(model.step if model.version is None else model.version)


def inferred(model: ModelDescription, question: PredictionRequest, predictions: Predictions) -> HttpAnswer:
    """Return predictions in version 2 of the protocol."""
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for number, is_binary in question.outputs:
        values = np.ascontiguousarray(predictions.values[:, number])
        output = model.outputs[number]
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": [values.size]}
        if is_binary:
            parts.append(values.astype("<f4", copy=False).tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = values.tolist()
        outputs.append(entry)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": version_of(model), "outputs": outputs}
    if question.id is not None:
        answer["id"] = question.id
    head, headers = _ENCODER.encode(answer), {MODEL_VERSION: version_of(model)}
    if not parts:
        return HttpAnswer(200, head, headers=headers)
    headers["inference-header-content-length"] = str(len(head))
    return HttpAnswer(200, b"".join([head, *parts]), "application/octet-stream", headers)


def predicted(model: ModelDescription, predictions: Predictions) -> HttpAnswer:
    """Return predictions of rows: a number for each, or with several outputs an object."""
    rows: list[Any] = predictions.values[:, 0].tolist()
    if len(model.outputs) > 1:
        names = [output.name for output in model.outputs]
        rows = [dict(zip(names, row, strict=True)) for row in predictions.values.tolist()]
    return in_json({"predictions": rows})._replace(headers={MODEL_VERSION: version_of(model)})
