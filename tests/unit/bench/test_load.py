"""The load of a server: when requests arrive, what is counted, and servers that fail."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from persia_cli.bench.load.generator import LoadGenerator, poisson
from persia_cli.bench.load.order import LoadOrder, LoadReport, SentRequest
from persia_cli.bench.load.process import load
from persia_cli.errors import RoleError, WireError

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
    numbers, threads = itertools.count(), list[threading.Thread]()
    open_sockets: list[socket.socket] = []

    def answer(client: socket.socket) -> None:
        with client:
            while client.recv(65536):
                told = answers(next(numbers))
                if told is None:
                    return
                client.sendall(told)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(client)
            threads.append(threading.Thread(target=quietly, args=(client,)))
            threads[-1].start()

    def quietly(client: socket.socket) -> None:
        with suppress(OSError):  # once the load has ended
            answer(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for client in open_sockets:
                with suppress(OSError):  # if it is closed
                    client.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


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


def test_requests_that_never_had_their_turn_are_errors_and_end_the_load_in_time() -> None:
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
