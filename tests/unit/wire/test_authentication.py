"""Access to a job: exactly the clients with its secret, and none while authentication does not run."""

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import secret, sockets
from persia_cli.wire.loop import Loop
from persia_cli.wire.messages import WaitCredit
from persia_cli.wire.secret import JobSecret, new_keys
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for
from tests.support.closing import close_in_time

IN_S = 5.0
OUT_MS = 300
"""Seconds in which a client with the right secret connects many times over."""
LIMIT_S = 10.0
ANY = "tcp://127.0.0.1:0"
KEYS = new_keys()
MANY = 3000
"""Connections; libzmq keeps fewer events by default."""


@pytest.fixture
def keyed() -> Iterator[Context]:
    made = Context(JobSecret.of(KEYS))
    yield made
    close_in_time(made, LIMIT_S)


@pytest.fixture
def foreign() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context of another user with any ZeroMQ options."""
    with zmq.Context() as made:
        yield made


def comes_through(router: sockets.Listener, dealer: zmq.Socket[bytes], within_ms: float) -> bool:
    dealer.send_multipart([b"hello"])
    if not router.poll(within_ms):
        return False
    assert router.recv_multipart()[1:] == [b"hello"]
    return True


def hostile(context: zmq.Context[zmq.Socket[bytes]], address: str, **options: bytes) -> zmq.Socket[bytes]:
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 0)
    for name, value in options.items():
        setattr(made, name, value)
    made.connect(address)
    return made


def test_a_process_with_the_keys_gets_in_and_is_encrypted(keyed: Context) -> None:
    router = sockets.router(keyed, ANY)
    dealer = sockets.dealer(keyed, sockets.bound_address(router), b"d")
    assert comes_through(router, dealer, IN_S * 1000)
    assert router.getsockopt(zmq.MECHANISM) == dealer.getsockopt(zmq.MECHANISM) == zmq.CURVE
    dealer.follow()
    assert not dealer.denied
    assert not dealer.hung_up
    dealer.close()
    router.close()


def test_unix_sockets_of_a_job_with_keys_go_by_its_token(keyed: Context, ipc_directory: Path) -> None:
    router = sockets.router(keyed, f"ipc://{ipc_directory}/server")
    dealer = sockets.dealer(keyed, f"ipc://{ipc_directory}/server", b"d")
    assert comes_through(router, dealer, IN_S * 1000)
    assert router.getsockopt(zmq.MECHANISM) == zmq.PLAIN
    dealer.close()
    router.close()


STRANGERS = ("nothing", "the public key", "the public key and its own keys", "the token", "the keys of another job")


@pytest.mark.parametrize("has", STRANGERS)
def test_strangers_stay_out(
    keyed: Context,
    foreign: zmq.Context[zmq.Socket[bytes]],
    has: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = sockets.router(keyed, ANY)
    address, other = sockets.bound_address(router), new_keys()
    pair = {"curve_secretkey": other.secret, "curve_publickey": other.public}
    options: dict[str, bytes] = {
        "nothing": {},
        # A client of CURVE needs some pair of keys.
        "the public key": {**pair, "curve_serverkey": KEYS.public, "curve_publickey": KEYS.public},
        "the public key and its own keys": {**pair, "curve_serverkey": KEYS.public},
        "the token": {"plain_username": b"persia", "plain_password": KEYS.token.hex().encode()},
        "the keys of another job": {**pair, "curve_serverkey": other.public},
    }[has]
    dealer = hostile(foreign, address, **options)
    try:
        with caplog.at_level(logging.WARNING):
            assert not comes_through(router, dealer, OUT_MS)
            for now in range(3):
                router.count_refusals(float(now))
        [line] = [record.getMessage() for record in caplog.records]
        assert router.turned_away > 0
        assert f"connections to {address} were refused, one since it " in line
        for secret in (KEYS.secret, KEYS.public, KEYS.token.hex().encode()):
            assert secret.decode() not in caplog.text
        friend = sockets.dealer(keyed, address, b"d")
        assert comes_through(router, friend, IN_S * 1000)
        friend.close()
    finally:
        dealer.close()
        router.close()


def test_a_role_with_other_keys_reports_it_at_once_and_at_its_end(
    keyed: Context, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "--token-file or --key-file"
    with Context(JobSecret.of(new_keys())) as other:
        server, client_loop = Loop(keyed, "server"), Loop(other, "role")
        address = server.serve(ANY).address
        client = client_loop.connect(address, "coordinator", b"role", retry_s=0.05, silence_timeout_s=1.0)
        client.request(WaitCredit(0, 1))

        def end() -> None:
            while True:
                client_loop.poll(0.05)

        with caplog.at_level(logging.WARNING), pytest.raises(WireError, match=f"not answered for 1 s .*{hint}"):
            end()
        said = [record.getMessage() for record in caplog.records if "not answered yet" in record.getMessage()]
        assert len(said) == 1
        assert address in said[0]
        assert hint in said[0]
        client_loop.close()
        server.close()


def test_after_the_death_of_authentication_only_old_clients_stay(
    keyed: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    router = sockets.router(keyed, ANY)
    address = sockets.bound_address(router)
    early = sockets.dealer(keyed, address, b"early")
    assert comes_through(router, early, IN_S * 1000)

    def die(*request: object) -> bool:
        raise RuntimeError("made up")

    monkeypatch.setattr(secret, "_is_right", die)
    late = sockets.dealer(keyed, address, b"late")
    assert not comes_through(router, late, OUT_MS)
    poll_for(lambda: "authentication has failed" in caplog.text, LIMIT_S, "a line of the log")
    poll_for(lambda: "authentication" not in {each.name for each in threading.enumerate()}, LIMIT_S, "the thread's end")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    for _ in range(MANY):
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert comes_through(router, early, IN_S * 1000)
    assert not comes_through(router, late, OUT_MS)
    for each in (early, late, router):
        each.close()


def test_with_keys_or_trust_it_is(keyed: Context) -> None:
    with Context(trusts_network=True) as trusting:
        for context in (keyed, trusting):
            with pytest.raises(WireError, match=r"cannot listen at tcp://10.1.2.3:0: Cannot assign requested address"):
                sockets.router(context, "tcp://10.1.2.3:0")
            sockets.dealer(context, "tcp://10.1.2.3:7", b"d").close()
            with pytest.raises(WireError, match="stands for every network interface"):
                sockets.router(context, "tcp://0.0.0.0:0")
