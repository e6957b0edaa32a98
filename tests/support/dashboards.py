"""Servers of pages that listen in a thread of the test, and requests to a dashboard."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import uvicorn

from persia_cli.dashboard.app import server_of
from persia_cli.dashboard.folder import Folder
from persia_cli.serving.http.admission import TokenFile


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Event(NamedTuple):
    kind: str
    value: Any
    id: str


class Asked:
    """The address of a dashboard."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", self._target(path, query), headers=dict(headers or {}))
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.headers), answer.read())
        connection.close()
        return found

    @contextmanager
    def events(self, path: str, last: str = "", **query: Any) -> Iterator[Iterator[Event]]:
        """Yield the events of a stream, which a client that has seen `last` asks for."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", self._target(path, query), headers={"Last-Event-ID": last} if last else {})
        answer = connection.getresponse()
        try:
            yield self._events(answer)
        finally:
            answer.close()
            connection.close()

    @staticmethod
    def _events(answer: http.client.HTTPResponse) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for line in iter(answer.readline, b""):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            if not name and not line.startswith(b":"):
                fields = {}

    @staticmethod
    def _target(path: str, query: Mapping[str, Any]) -> str:
        return f"{path}?{urlencode(query, doseq=True)}" if query else path


@contextmanager
def dashboard_over(folder: Path, token: Path | None = None) -> Iterator[Asked]:
    """Serve a folder at a free port."""
    with listening(server_of(Folder(folder), None if token is None else TokenFile(token), "127.0.0.1")) as port:
        yield Asked(port)


@contextmanager
def listening(server: uvicorn.Server) -> Iterator[int]:
    """Run a server in a thread at a free port, which is yielded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10.0)
