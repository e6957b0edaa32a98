"""The load of a server: its requests, when they arrive, what is counted, and servers that fail."""

import asyncio
import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from persia_cli.errors import RoleError, UserError
from persia_cli.serving.http.answers import MODEL_VERSION
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from scripts.measure.comparisons.serve import answers_of, prepare_requests, user_fields
from scripts.measure.load import Load, Loaded, generate, load, moments
from tests.support.asgi import asked
from tests.support.small_model import NAME, write_small_model

ANSWER = b"[0.25, 0.5]"
REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
Answers = Callable[[int], bytes | None]
"""Answers of a server to each of its requests; None closes the connection."""


def response(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n%s\r\n%s" % (status, len(body), more, body)


RIGHT = response(200, ANSWER)


@contextmanager
def server(answers: Answers) -> Iterator[int]:
    """Serve on a thread for each connection until the end of the block; yields the port."""
    numbers, clients = itertools.count(), list[socket.socket]()

    class Answering(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            clients.append(self.request)
            with suppress(OSError):  # once the load has ended
                while self.request.recv(65536):
                    told = answers(next(numbers))
                    if told is None:
                        return
                    self.request.sendall(told)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as listener:
        accepting = threading.Thread(target=listener.serve_forever, args=(0.01,))
        accepting.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            accepting.join()
            for client in clients:
                with suppress(OSError):  # if it is closed
                    client.shutdown(socket.SHUT_RDWR)


def order(port: int, rate: float | None = None, seconds: float = 0.3, patience_s: float = 5.0) -> Load:
    return Load(port, [(REQUEST, {"": ANSWER})], 3, seconds, rate, 0.0, patience_s, seed=7)


def loaded(answers: Answers, **more: float) -> Loaded:
    with server(answers) as port:
        return generate(order(port, **more))


def test_requests_arrive_at_random_moments_of_the_rate() -> None:
    arrivals = moments(rate=1000.0, seconds=20.0, seed=3)
    assert arrivals.size == pytest.approx(20_000, rel=0.03)
    assert 0 < arrivals[0] < arrivals[-1] < 20.0
    gaps = np.diff(arrivals)
    # Of an exponential distribution deviation and mean are equal, and 1/e of the gaps are longer than the mean.
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), abs=0.02)


def test_answers_refusals_and_errors_are_counted_apart() -> None:
    refusal = response(503, b'{"error": "too much"}', b"connection: close\r\n")
    error = response(500, b'{"error": "it failed"}')

    def answers(number: int) -> bytes:
        return (RIGHT, refusal, error, RIGHT)[number % 4]

    for rate in (None, 400.0):
        report = loaded(answers, rate=rate)
        assert report.busy > 10
        assert report.busy == pytest.approx(report.errors, abs=8)
        assert report.seconds_each().size == pytest.approx(report.busy + report.errors, abs=8)
        assert report.first_error == '500 {"error": "it failed"}'
        assert report.due == report.seconds_each().size + report.busy + report.errors


def test_what_is_due_while_the_server_stands_still_waits_from_then_on() -> None:
    """It stands still once for 0.3 s: of requests 0.01 s apart, many are late, and not just those that it held."""
    stall, moving = 0.3, threading.Event()

    def answers(number: int) -> bytes:
        moving.wait(10)
        return RIGHT

    with server(answers) as port:
        go_on = threading.Timer(stall, moving.set)
        go_on.start()
        report = generate(order(port, rate=100.0, seconds=0.6))
        go_on.join()
    late = report.seconds_each() > 0.02
    assert late.sum() > 10, "more than there are connections"
    # A busy machine answers later still, but not by the limit of `answers`.
    assert stall - 0.15 < report.seconds_each().max() < stall + 5


def test_requests_without_an_answer_are_errors() -> None:
    """The server answers five, and then nothing."""
    for rate in (None, 50.0):
        begin = time.monotonic()
        report = loaded(lambda number: RIGHT if number < 5 else b"", rate=rate, patience_s=0.4)
        assert time.monotonic() - begin < 4.0
        assert report.answered == 5
        assert report.errors == report.due - 5 > 0
        assert report.first_error == "none within 0.4 s after the end"


def test_other_predictions_than_the_models_end_the_load() -> None:
    report = loaded(lambda number: RIGHT if number < 5 else response(200, b"[0.25, 0.75]"))
    assert "other predictions than the model" in report.failure


def test_broken_connections_are_errors_and_a_dead_server_ends_the_load() -> None:
    report = loaded(lambda number: None if number == 4 else RIGHT)
    assert (report.errors, report.first_error[:19]) == (1, "a broken connection")
    assert report.answered > 10
    with server(lambda number: RIGHT) as port:
        report = load(order(port))
        assert report.answered > 10
        assert 0 < report.cpu_s <= report.wall_s * 1.5
    with pytest.raises(RoleError, match="does not take connections"):
        load(order(port))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.open(write_small_model(tmp_path_factory.mktemp("model") / NAME))


@pytest.mark.parametrize("user", [set(), {"user"}, {"user", "words"}])
def test_the_server_answers_requests_of_golden_samples_with_these_bytes(model: Predictor, user: set[str]) -> None:
    app = ServingApp(model, ServerSettings(str(model.folder)))
    for candidates in (1, 40):
        for request in prepare_requests(model, candidates, user, 3):
            head, _, body = request.wire.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, path, _ = first.split()
            answer = asyncio.run(asked(app, method, path, body, dict(line.split(": ") for line in lines)))
            assert answer.status == 200
            assert {answer.headers[MODEL_VERSION]: answer.body} == answers_of(request, model)
            assert len(request.inputs["dense"]) == candidates
            assert set(request.inputs["dense"].reshape(-1).tolist()) <= {0.5, 1.0, -2.0}


def test_fields_of_the_user(model: Predictor) -> None:
    inputs = model.description.inputs
    assert user_fields(inputs, None) == {each.name for each in inputs[:2]}
    assert user_fields(inputs, " item, price,") == {"item", "price"}
    with pytest.raises(UserError, match="the model has no field age"):
        user_fields(inputs, "age")
