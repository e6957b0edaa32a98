"""The load of a server: its requests, when they arrive, what is counted, and servers that fail."""

import asyncio
import itertools
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from persia_cli.bench.load.generator import LoadGenerator, poisson
from persia_cli.bench.load.order import LoadOrder, LoadReport, SentRequest
from persia_cli.bench.load.process import load
from persia_cli.bench.load.requests import RequestForm, pool_of, prepared, user_fields
from persia_cli.errors import RoleError, UserError, WireError
from persia_cli.serving.http.app import ServingApp
from persia_cli.serving.http.settings import ServerSettings
from persia_cli.serving.predictor import Predictor
from tests.support.asgi import asked
from tests.support.small_model import NAME, write_small_model

ANSWER = b"[0.25, 0.5]"
REQUEST = SentRequest(b"POST /v2/models/m/infer HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", ANSWER)
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


def order(port: int, rate: float | None = None, seconds: float = 0.3, patience_s: float = 5.0) -> LoadOrder:
    return LoadOrder("127.0.0.1", port, [REQUEST], 3, 0.0, seconds, rate, 7, os.getpid(), patience_s)


def loaded(answers: Answers, **more: float) -> LoadReport:
    with server(answers) as port:
        return LoadGenerator(order(port, **more)).run()


def test_requests_arrive_at_random_moments_of_the_rate() -> None:
    moments = poisson(rate=1000.0, seconds=20.0, seed=3)
    assert moments.size == pytest.approx(20_000, rel=0.03)
    assert (np.diff(moments) >= 0).all()
    assert 0 < moments[0] < moments[-1] < 20.0
    gaps = np.diff(moments)
    # Of an exponential distribution deviation and mean are equal, and 1/e of the gaps are longer than the mean.
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), abs=0.02)
    assert (poisson(1000.0, 20.0, 3) == moments).all()
    assert not (poisson(1000.0, 20.0, 4)[:100] == moments[:100]).any()


def test_answers_refusals_and_errors_are_counted_apart() -> None:
    refusal = response(503, b'{"error": "too much"}', b"connection: close\r\n")
    error = response(500, b'{"error": "it failed"}')

    def answers(number: int) -> bytes:
        return (RIGHT, refusal, error, RIGHT)[number % 4]

    for rate in (None, 400.0):
        report = loaded(answers, rate=rate)
        assert report.answered == pytest.approx(report.busy + report.errors, abs=8)
        assert report.busy == pytest.approx(report.errors, abs=8)
        assert report.busy > 10
        assert report.first_error == "500: it failed"
        assert report.seconds_each().size == pytest.approx(report.answered, abs=8)


def test_what_is_due_while_the_server_stands_still_waits_from_then_on() -> None:
    """It stands still once for 0.3 s: of requests 0.01 s apart, many are late, and not just those that it held."""
    stall, moving = 0.3, threading.Event()

    def answers(number: int) -> bytes:
        moving.wait(10)
        return RIGHT

    with server(answers) as port:
        go_on = threading.Timer(stall, moving.set)
        go_on.start()
        report = LoadGenerator(order(port, rate=100.0, seconds=0.6)).run()
        go_on.join()
    late = report.seconds_each() > 0.02
    assert late.sum() > 10, "more than there are connections"
    assert report.seconds_each().max() == pytest.approx(stall, abs=0.15)


def test_requests_that_never_had_their_turn_are_errors() -> None:
    begin = time.monotonic()
    report = loaded(lambda number: RIGHT, rate=500_000.0, seconds=0.2, patience_s=0.5)
    assert time.monotonic() - begin < 5.0
    assert report.errors + report.seconds_each().size == pytest.approx(100_000, rel=0.05)
    assert report.errors > 10_000
    assert report.first_error == "none: its turn had not come 0.5 s after the end"


def test_other_predictions_than_the_models_end_the_load() -> None:
    with pytest.raises(WireError, match="other predictions than the model"):
        loaded(lambda number: RIGHT if number < 5 else response(200, b"[0.25, 0.75]"))


def test_requests_to_a_silent_server_are_aborted() -> None:
    begin = time.monotonic()
    with pytest.raises(WireError, match=r"has not answered a request for 0\.6 s"):
        loaded(lambda number: RIGHT if number < 5 else b"", rate=50.0, patience_s=0.6, seconds=5.0)
    assert time.monotonic() - begin < 4.0


def test_broken_connections_are_errors_and_a_dead_server_ends_the_load() -> None:
    report = loaded(lambda number: None if number == 4 else RIGHT)
    assert (report.errors, report.first_error) == (1, "the server closed the connection before it had answered")
    assert report.answered > 10
    with server(lambda number: RIGHT) as port:
        pass
    with pytest.raises(WireError, match="does not take connections: Connection refused"):
        LoadGenerator(order(port)).run()


def test_another_process_reports_its_counts_or_its_failure() -> None:
    with server(lambda number: RIGHT) as port:
        report = load(order(port))
        assert report.answered > 10
        assert report.busy == report.errors == 0
        assert 0 < report.cpu_s <= report.wall_s * 1.5
    with pytest.raises(RoleError, match="does not take connections"):
        load(order(port))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.open(write_small_model(tmp_path_factory.mktemp("model") / NAME))


def test_values_are_golden_where_samples_have_them(model: Predictor) -> None:
    pool = pool_of(model)
    assert pool.samples == 3
    assert pool.made_up == ["words"]
    assert list(pool.values["user"]) == [1, 2, 9]
    assert list(pool.values["item"]) == [4, 5, 6]
    assert list(pool.values["price"]) == [0.5, 1.0, -2.0]
    assert all(len(words) == 1 and words[0].startswith("word-") for words in pool.values["words"])


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("user", [frozenset(), frozenset({"user"}), frozenset({"user", "words"})])
def test_the_server_answers_them_with_these_bytes(model: Predictor, is_binary: bool, user: frozenset[str]) -> None:
    app = ServingApp(model, ServerSettings(str(model.folder)))
    for candidates in (1, 40):
        for each in prepared(model, pool_of(model), RequestForm(candidates, user, is_binary), 3):
            head, _, body = each.sent.wire.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, path, _ = first.split()
            answer = asyncio.run(asked(app, method, path, body, dict(line.split(": ") for line in lines)))
            assert (answer.status, answer.body) == (200, each.sent.answer)
            assert len(each.inputs["dense"]) == candidates
            assert len(np.unique(each.inputs["dense"])) <= 3


def test_fields_of_the_user(model: Predictor) -> None:
    inputs = model.description.inputs
    assert user_fields(inputs, None) == {each.name for each in inputs[:2]}
    assert user_fields(inputs, " item, price,") == {"item", "price"}
    assert user_fields(inputs, "none") == frozenset()
    with pytest.raises(UserError, match="--user missing"):
        user_fields(inputs, "missing")
