"""`persia serve` in the hands of operators: clients that stall, load balancers, reloads, Unix sockets."""

import http.client
import os
import re
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import poll_for
from tests.support.asgi import Response, outputs_of
from tests.support.small_model import write_small_model
from tests.system.test_serve import BODY, INFER, READY_S, Server, expected, serving
from tests.system.test_serve_attacked import Load

pytestmark = pytest.mark.slow
HEAD_S, LATE_S = 5.0, 10.0
"""Seconds for a request's head, and what a slow machine may add."""
HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = (
    b"POST /v2/models/shop/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n" % (len(BODY), BODY)
)
GROWTH = 60 * 2**20
"""Bytes that a worker may grow by, of which most are buffers of the system."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "shop")


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=HEAD_S + LATE_S)


def ask(client: socket.socket, head: bytes = HEAD) -> bytes:
    """Return the status line of the answer to a request on an open connection."""
    client.sendall(head + b"\r\n")
    found = b""
    while not found.endswith((b'{"live":true}', b"Service Unavailable")):
        part = client.recv(65536)
        assert part, found
        found += part
    return found.split(b"\r\n")[0]


def answer_of(client: socket.socket) -> bytes:
    """Return what a server sends until it closes the connection; raises TimeoutError if it does not."""
    found = b""
    with suppress(ConnectionError):
        while part := client.recv(65536):
            found += part
    return found


def test_heads_are_bounded_in_size_and_time(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "heads", "--workers", "1") as server, ExitStack() as stack:
        [worker] = server.workers()
        before = worker.memory_info().rss
        kept = stack.enter_context(connected(server))
        assert ask(kept) == b"HTTP/1.1 200 OK"
        refused = stack.enter_context(connected(server))
        refused.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n")
        found = b""
        while not found.endswith(b"}"):
            found += refused.recv(65536)
        assert found.startswith(b"HTTP/1.1 404 ")
        refused.sendall(b"a")  # its body
        begun = stack.enter_context(connected(server))
        begun.sendall(HEAD + b"\r\nGE")
        begin = time.monotonic()
        late = [stack.enter_context(connected(server)) for _ in range(200)]
        for number, client in enumerate(late):
            client.sendall(HEAD[: number % 2 * len(HEAD)])
        for part in (b"a" * 2**20, b"a: b\r\n" * 2**17):
            endless = stack.enter_context(connected(server))
            with suppress(ConnectionError):
                endless.sendall(HEAD + b"X-A: ")
                for _ in range(100):
                    endless.sendall(part)
                pytest.fail("an endless head is read")
            assert server.ask("GET", "/v2/health/live").status == 200
        trailed = stack.enter_context(connected(server))
        trailed.sendall(CHUNKED + b"0\r\nX-A: ".ljust(2**18, b"a"))
        assert answer_of(trailed).startswith(b"HTTP/1.1 400 ")
        for client in late:
            assert answer_of(client) == b""
        assert answer_of(begun).endswith(b'{"live":true}')
        assert HEAD_S - 1 < time.monotonic() - begin < HEAD_S + LATE_S
        large = stack.enter_context(connected(server))
        assert ask(large, HEAD + b"X-A: " + b"a" * 40_000 + b"\r\n") == b"HTTP/1.1 200 OK"
        # A connection that has had its answer stays open for longer.
        assert ask(kept) == ask(refused) == b"HTTP/1.1 200 OK"
        assert worker.memory_info().rss - before < GROWTH


def test_a_client_that_sends_requests_ahead_takes_no_memory(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "ahead", "--workers", "1") as server, connected(server) as client:
        [worker] = server.workers()
        before, found = worker.memory_info().rss, b""

        def send() -> None:
            with suppress(ConnectionError):
                client.sendall((HEAD + b"\r\n") * 200_000)

        sender = threading.Thread(target=send)
        sender.start()
        while found.count(b'{"live":true}') < 500:
            part = client.recv(65536)
            assert part
            found += part
        assert worker.memory_info().rss - before < GROWTH
        client.shutdown(socket.SHUT_RDWR)
        sender.join()


def test_headers_after_a_body_are_not_those_of_the_request(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "trailers", "--workers", "1") as server, connected(server) as client:
        client.sendall(CHUNKED + b"0\r\nContent-Encoding: br\r\nAuthorization: Bearer a\r\n\r\n")
        answer = answer_of(client)
        assert answer.startswith(b"HTTP/1.1 200 "), answer


def open_of(worker: psutil.Process) -> int:
    return len([each for each in worker.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED])


def test_connections_are_shared_by_the_workers(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "shared", "--workers", "2") as server, ExitStack() as stack:
        poll_for(lambda: b"persia_workers 2.0" in server.ask("GET", "/metrics").body, READY_S, "both are ready")
        for _ in range(40):
            client = stack.enter_context(connected(server))
            assert ask(client) == b"HTTP/1.1 200 OK"
        shares = sorted(map(open_of, server.workers()))
        assert shares[0] >= 16, shares
        assert sum(shares) == 40


def test_connections_beyond_the_maximum_are_refused(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "few", "--workers", "1", "--connections", "4") as server, ExitStack() as stack:
        for number in range(6):
            client = stack.enter_context(connected(server))
            assert ask(client).split()[1] == (b"200" if number < 4 else b"503")


def test_a_load_balancer_sees_the_end_before_it_comes(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "drain", "--workers", "2", "--drain", "5") as server:
        os.kill(server.process.pid, signal.SIGTERM)
        for worker in server.workers():  # as service managers do
            worker.terminate()
        poll_for(lambda: server.ask("GET", "/v2/health/ready").status == 503, 4.0, "the server is not ready")
        answer = server.ask("POST", INFER, BODY)
        assert outputs_of(answer) == expected(model)
        assert answer.headers["connection"] == "close"
        assert server.ask("GET", "/v2/health/live").status == 200
        assert server.process.wait(20) == 0


def test_sighup_replaces_a_single_worker_without_a_gap(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "hup", "--workers", "1", "--log", str(tmp_path / "log")) as server:
        [before] = server.workers()
        with Load(server, expected(model)) as load:
            poll_for(lambda: load.seen["200"] > 50, READY_S, "answers")
            os.kill(server.process.pid, signal.SIGHUP)
            poll_for(lambda: not before.is_running(), READY_S, "the worker is replaced")
            answered = load.seen["200"]
            poll_for(lambda: load.seen["200"] > answered + 50, READY_S, "answers")
        assert load.wrong == []
        # A connection that waits for its next request may be closed in the moment in which that is sent.
        assert set(load.seen) <= {"200", "ConnectionResetError", "RemoteDisconnected", "BrokenPipeError"}, load.seen
        server.process.terminate()
        assert server.process.wait(30) == 0
        logged = re.search(r"logged +([\d,]+) requests", server.log.read_text())
        assert logged, server.log.read_text()
        assert int(logged[1].replace(",", "")) == load.seen["200"]


def test_a_unix_socket_is_served(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(model, tmp_path / "unix", "--workers", "2", "--unix", str(path)) as server:
        for _ in range(4):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(20)
            client.connect(str(path))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = client
            connection.request("POST", INFER, BODY)
            answer = connection.getresponse()
            assert outputs_of(Response(answer.status, {}, answer.read())) == expected(model)
            connection.close()
        server.process.terminate()
        assert server.process.wait(30) == 0
        assert not path.exists()
