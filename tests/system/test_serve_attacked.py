"""Servers under load and attack: clients that send anything, workers that are killed and stopped."""

import http.client
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import poll_for
from tests.support.asgi import Response, outputs_of
from tests.support.small_model import write_small_model
from tests.system.test_serve import BODY, INFER, READY_S, Server, expected, serving

pytestmark = pytest.mark.slow
HEAD_S, LATE_S = 10.0, 5.0
"""Seconds for a request's head, and what a slow machine may add."""
GROWTH = 40 * 2**20
"""Bytes that a worker may grow by: buffers of the largest bodies, which are kept."""
LARGEST = 16 * 2**20
"""Bytes of a body."""


class Guarded:
    """A server that speaks TLS, and how to reach it."""

    def __init__(self, server: Server, model: Path, certificate: Path) -> None:
        self.server, self.model = server, model
        self.context = ssl.create_default_context(cafile=certificate)

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("localhost", self.server.port), timeout=HEAD_S + LATE_S)
        return self.context.wrap_socket(plain, server_hostname="localhost")

    def over_http(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.server.port, timeout=30, context=self.context)

    def require_answers(self) -> None:
        """Fail unless every one of a few new connections gets predictions."""
        for _ in range(4):
            connection = self.over_http()
            connection.request("POST", INFER, BODY)
            answer = connection.getresponse()
            assert outputs_of(Response(answer.status, {}, answer.read())) == expected(self.model)
            connection.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("attacked")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=DNS:localhost"], cwd=folder, check=True, capture_output=True
    )
    model = write_small_model(folder / "shop")
    files = ["--tls", str(folder / "cert.pem"), str(folder / "key.pem")]
    with serving(model, folder / "server", "--workers", "2", *files) as server:
        found = Guarded(server, model, folder / "cert.pem")
        found.require_answers()
        before = {worker.pid: worker.memory_info().rss for worker in server.workers()}
        yield found
        found.require_answers()
        after = {worker.pid: worker.memory_info().rss for worker in server.workers()}
        assert after.keys() == before.keys()  # none has died
        assert max(after[pid] - before[pid] for pid in after) < GROWTH
    assert "Traceback" not in server.log.read_text()


def until_end(connection: socket.socket) -> tuple[bytes, float]:
    """Return the bytes that come until the server hangs up, and the seconds that this takes."""
    begin, found = time.monotonic(), b""
    with suppress(ssl.SSLError, ConnectionError):  # and no TimeoutError
        while data := connection.recv(65536):
            found += data
    connection.close()
    return found, time.monotonic() - begin


def test_bytes_that_are_not_encrypted_end_the_connection(guarded: Guarded) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(3000)):
        connection = socket.create_connection(("localhost", guarded.server.port), timeout=HEAD_S + LATE_S)
        connection.sendall(garbage)
        found, seconds = until_end(connection)
        assert b"HTTP" not in found
        assert seconds < LATE_S
    below = socket.socket(fileno=guarded.connect().detach())
    below.settimeout(HEAD_S + LATE_S)
    below.sendall(random.Random(2).randbytes(500))
    assert until_end(below)[1] < LATE_S
    guarded.require_answers()


def test_bytes_that_are_no_request_are_refused(guarded: Guarded) -> None:
    for garbage in (random.Random(3).randbytes(3000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        connection = guarded.connect()
        connection.sendall(garbage)
        found, seconds = until_end(connection)
        assert found.startswith(b"HTTP/1.1 400 ")
        assert seconds < LATE_S


def test_slow_clients_do_not_delay_others(guarded: Guarded) -> None:
    """Check a client that sends nothing, one in the midst of its head, and one in the midst of its body."""
    silent, in_head, in_body = (guarded.connect() for _ in range(3))
    in_head.sendall(b"POST /v2/models/shop/infer HTTP/1.1\r\nx-a: b\r\n")
    in_body.sendall(b"POST /v2/models/shop/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{")
    guarded.require_answers()
    assert until_end(in_body)[0].startswith(b"HTTP/1.1 408 ")
    silent.close()
    in_head.close()


def test_bodies_of_every_size_are_answered_or_refused(guarded: Guarded) -> None:
    for size in (2**16, 2**16 + 1, LARGEST, LARGEST + 1, 3 * LARGEST):
        connection = guarded.over_http()
        connection.request("POST", "/v1/models/shop:predict", b'{"instances":[]' + b" " * (size - 16) + b"}")
        answer = connection.getresponse()
        assert answer.status == (200 if size <= LARGEST else 413)
        answer.read()
        connection.close()


CLIENTS = 6
PATIENCE_S = 3.0
"""Seconds for which a client waits for an answer."""
OPTIONS = ["--workers", "2"]


class Load:
    """Clients that ask again and again, each on a connection that it keeps as long as it can."""

    def __init__(self, server: Server, right: Any) -> None:
        self._server, self._right = server, right
        self._is_over = threading.Event()
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _connected(self) -> http.client.HTTPConnection:
        connection = self._server.connect()
        connection.timeout = PATIENCE_S
        return connection

    def _ask(self) -> None:
        connection = self._connected()
        while not self._is_over.is_set():
            try:
                connection.request("POST", INFER, BODY)
                got = connection.getresponse()
                body = got.read()
            except (OSError, http.client.HTTPException) as error:
                # Of a worker that is no more. Half an answer is known as such by its length; the client can ask again.
                self.seen[type(error).__name__] += 1
                connection.close()
                connection = self._connected()
                continue
            self.seen[str(got.status)] += 1
            if got.status != 200:
                self.wrong.append(body.decode())
            elif (found := outputs_of(Response(200, {}, body))) != self._right:
                self.wrong.append(f"{found}")
        connection.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


@pytest.mark.timeout(300)
def test_deaths_and_stops_at_random_moments_make_no_answer_wrong(model: Path, tmp_path: Path) -> None:
    draw = random.Random(4)
    with serving(model, tmp_path / "deaths", *OPTIONS) as server:
        first = server.workers()
        with Load(server, expected(model)) as load:
            for number in range(4):
                poll_for(server.are_ready, READY_S, "all workers are there")
                victim = draw.choice(server.workers())
                if number % 2:
                    victim.send_signal(signal.SIGSTOP)
                until = time.monotonic() + draw.uniform(0.0, 0.3)
                before = sum(load.seen.values())
                poll_for(lambda: time.monotonic() > until, 5.0, "a random moment")  # noqa: B023
                if number % 2:  # the others answer on while one stands
                    poll_for(lambda: load.seen["200"] > before, READY_S, "answers")  # noqa: B023
                victim.kill()
            poll_for(server.are_ready, READY_S, "all workers are there")
            answered = load.seen["200"]
            poll_for(lambda: load.seen["200"] > answered + 100, READY_S, "answers")
        assert load.wrong == []
        # All connections may be with the worker that stands, until their clients lose patience.
        cut_off = {"TimeoutError", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError", "IncompleteRead"}
        assert set(load.seen) <= {"200", *cut_off}, load.seen
        assert load.seen["200"] > 500
        assert len(server.workers()) == 2
        assert server.workers() != first


@pytest.mark.timeout(300)
def test_the_end_under_load_leaves_no_half_answer_and_no_process(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "end", *OPTIONS) as server:
        workers = server.workers()
        with Load(server, expected(model)) as load:
            poll_for(lambda: load.seen["200"] > 200, READY_S, "answers")
            os.kill(server.process.pid, signal.SIGTERM)
            assert server.process.wait(20) == 0
            assert not any(each.is_running() for each in workers)
        assert load.wrong == []
        # A connection that waits for its next request may be closed in the moment in which that is sent.
        allowed = {"200", "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError"}
        assert set(load.seen) <= allowed, load.seen
        assert "Traceback" not in server.log.read_text()
