"""A worker whose parent dies while it starts ends without a word too many; another is warm before it listens."""

import gc
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import msgspec
import pytest

from persia_cli.server import worker as worker_module
from persia_cli.server.app import ServingApp
from persia_cli.server.settings import ServerSettings, WorkerOrder
from persia_cli.serving.description import digest_of
from persia_cli.serving.fields import RequestFields
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import ask
from tests.support.small_model import write_small_model

ORDER = WorkerOrder(
    ServerSettings("nowhere"), parent=1, listener=9, connections=10, number=0, workers=1, model=""
)  # fmt: skip


def serve_until_it_listens(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        order = msgspec.structs.replace(
            ORDER, settings=ServerSettings(str(model)), listener=os.dup(listener.fileno()), model=digest_of(model)
        )
        try:
            worker_module.serve(order, -1)
        finally:
            gc.unfreeze()


@pytest.mark.parametrize("order", [b"", msgspec.json.encode(ORDER)])
def test_a_worker_without_its_parent_does_not_begin(order: bytes) -> None:
    """Process 1 has not started it."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "persia_cli.server.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None
    worker.stdout.close()
    assert worker.stdin is not None
    assert worker.stderr is not None
    worker.stdin.write(order)
    worker.stdin.close()
    said = worker.stderr.read()
    worker.stderr.close()
    assert worker.wait(30) != 0
    assert b"Traceback" not in said, said


def test_the_example_is_answered_before_the_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden samples are batches already: how a request becomes one would else be loaded with the first of them."""
    model, seen = write_small_model(tmp_path / "shop"), []
    read, warm_up = RequestFields.batch, ServingApp.warm_up

    def reading(self: RequestFields, columns):
        seen.append(f"reads {columns['item']}")
        return read(self, columns)

    def warming(self: ServingApp) -> None:
        warm_up(self)
        assert "persia_samples_total 0.0" in ask(self, "GET", "/metrics").body.decode()

    monkeypatch.setattr(RequestFields, "batch", reading)
    monkeypatch.setattr(ServingApp, "warm_up", warming)
    monkeypatch.setattr(
        worker_module._Server, "run", lambda self, sockets: (seen.append("listens"), sockets[0].close())
    )
    serve_until_it_listens(model)
    assert seen == ["reads [4]", "listens"]


def test_a_model_whose_example_is_refused_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_small_model(tmp_path / "shop")
    app = ServingApp(Predictor.open(model), ServerSettings(str(model)))
    monkeypatch.setattr("persia_cli.server.app.example_row", lambda fields, golden: {"item": "no id"})
    app.warm_up()


def test_old_garbage_is_found_although_much_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TLS leaves of a connection is garbage. Python waits for a quarter of the objects that it found last time."""
    model, loaded, left = write_small_model(tmp_path / "shop"), [[] for _ in range(2_000_000)], []

    class Circle:
        def __init__(self) -> None:
            self.itself = self

    def run(self: object, sockets: list[socket.socket]) -> None:
        sockets[0].close()
        circle = Circle()
        left.append(weakref.ref(circle))
        old = [[] for _ in range(20_000)]
        del circle
        arrived = [[] for _ in range(200_000)]
        left.append(left[0]())
        del old, arrived

    monkeypatch.setattr(worker_module._Server, "run", run)
    serve_until_it_listens(model)
    assert len(loaded) == 2_000_000
    assert left[1] is None
