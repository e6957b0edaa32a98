"""A server of two workers that speaks TLS, and clients that send it anything: it answers on, by the same processes."""

import http.client
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.asgi import Response, outputs_of
from tests.support.small_model import write_small_model
from tests.system.test_serve import BODY, INFER, Server, expected, serving
from tests.unit.serving.http.test_malformed import altered, made_up

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


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(3000)], ids=["plain", "noise"]
)
def test_what_is_not_encrypted_is_hung_up_on(guarded: Guarded, garbage: bytes) -> None:
    connection = socket.create_connection(("localhost", guarded.server.port), timeout=HEAD_S + LATE_S)
    connection.sendall(garbage)
    found, seconds = until_end(connection)
    assert b"HTTP" not in found
    assert seconds < LATE_S
    guarded.require_answers()


def test_noise_below_an_encrypted_connection_ends_it(guarded: Guarded) -> None:
    own = socket.socket(fileno=guarded.connect().detach())
    own.settimeout(HEAD_S + LATE_S)
    own.sendall(random.Random(2).randbytes(500))
    assert until_end(own)[1] < LATE_S
    guarded.require_answers()


@pytest.mark.parametrize(
    "garbage", [random.Random(3).randbytes(3000), b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=["noise", "version", "http2"],
)  # fmt: skip
def test_what_is_no_request_is_refused(guarded: Guarded, garbage: bytes) -> None:
    connection = guarded.connect()
    connection.sendall(garbage)
    found, seconds = until_end(connection)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert seconds < LATE_S


def test_slow_clients_do_not_delay_others(guarded: Guarded) -> None:
    """Check a client that sends nothing, one in the midst of its head, and one in the midst of its body."""
    silent, in_head, in_body = (guarded.connect() for _ in range(3))
    in_head.sendall(b"POST /v2/models/shop/infer HTTP/1.1\r\nx-a: b\r\n")
    in_body.sendall(b"POST /v2/models/shop/infer HTTP/1.1\r\ncontent-length: 500\r\n\r\n{")
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


def test_a_request_of_one_byte_in_each_record_is_answered(guarded: Guarded) -> None:
    connection = guarded.connect()
    for byte in b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n":
        connection.send(bytes([byte]))
    assert until_end(connection)[0].endswith(b'{"live":true}')


@pytest.mark.parametrize(("version", "command", "lives"), [("-tls1_2", "R", False), ("-tls1_3", "K", True)])
def test_keys_are_not_negotiated_anew_but_may_be_updated(
    guarded: Guarded, version: str, command: str, lives: bool
) -> None:
    """Negotiating costs a server far more than its client."""
    place = f"localhost:{guarded.server.port}"
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", place, version, "-quiet", "-no_ign_eof"], bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    watch = threading.Timer(HEAD_S + LATE_S, client.kill)
    watch.start()
    found = b""
    try:
        client.stdin.write(f"{command}\n".encode())  # a command only if it comes alone
        while b"RENEGOTIATING" not in found and b"KEYUPDATE" not in found:
            found += (part := client.stdout.read(4096))
            assert part, found
        with suppress(BrokenPipeError):
            client.stdin.write(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        found += client.stdout.read()
    finally:
        watch.cancel()
        watch.join()
        client.kill()
        client.wait()
        client.stdin.close()
        client.stdout.close()
    assert (b'{"live":true}' in found) == lives, found
    guarded.require_answers()


@pytest.mark.timeout(600)
def test_malformed_bodies_over_tls_get_a_sentence(guarded: Guarded) -> None:
    connection = guarded.over_http()

    @settings(max_examples=3000, suppress_health_check=list(HealthCheck), deadline=None)
    @given(sent=altered() | made_up())
    def require_sentence(sent: tuple[str, bytes, dict[str, str]]) -> None:
        path, body, headers = sent
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200 or 400 <= answer.status < 500, (sent, content)
        if answer.status != 200:
            assert len(Response(answer.status, {}, content).json()["error"]) > 10

    require_sentence()
    connection.close()
