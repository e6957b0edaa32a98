"""Requests to an application of ASGI without a socket."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from persia_cli.serving.http.app import ServingApp


class Response(NamedTuple):
    """The application's answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def asked(
    app: ServingApp, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
    whole: bool = True,
) -> Response:  # fmt: skip
    """Answer a request; a body that is not `whole` never ends."""
    messages = [{"type": "http.request", "body": body, "more_body": not whole}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
    scope = {
        "type": "http", "method": method, "path": path,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()],
    }  # fmt: skip
    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Response(sent[0]["status"], found, b"".join(message["body"] for message in sent[1:]))


def ask(app: ServingApp, method: str, path: str, body: bytes = b"", **more: Any) -> Response:
    """Answer a request, on a new event loop."""
    return asyncio.run(asked(app, method, path, body, **more))


def tensor(name: str, datatype: str, values: Any, shape: list[int] | None = None) -> dict[str, Any]:
    """An input whose values are in the JSON."""
    return {"name": name, "datatype": datatype, "shape": shape or [len(values)], "data": values}


def binary(inputs: list[dict[str, Any]], **more: Any) -> tuple[bytes, dict[str, str]]:
    """The body of these inputs with all values as bytes, and its header."""
    told, parts = [], []
    for each in inputs:
        part = _bytes(each["datatype"], each["data"])
        rest = {key: value for key, value in each.items() if key != "data"}
        told.append({**rest, "parameters": {"binary_data_size": len(part)}})
        parts.append(part)
    head = json.dumps({"inputs": told, **more}).encode()
    return head + b"".join(parts), {"inference-header-content-length": str(len(head))}


def _bytes(datatype: str, values: Any) -> bytes:
    if datatype == "BYTES":
        return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in values)
    kinds = {"UINT64": "<u8", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8", "INT32": "<i4"}
    return np.array(values, kinds[datatype]).tobytes()


def outputs_of(response: Response) -> dict[str, list[float]]:
    """Predictions of an answer of version 2, from JSON or bytes."""
    length = response.headers.get("inference-header-content-length")
    head = json.loads(response.body[: int(length)] if length else response.body)
    rest, found = response.body[int(length or 0) :], {}
    for each in head["outputs"]:
        if "data" in each:
            found[each["name"]] = each["data"]
            continue
        size = each["parameters"]["binary_data_size"]
        found[each["name"]], rest = np.frombuffer(rest[:size], "<f4").tolist(), rest[size:]
    return found
