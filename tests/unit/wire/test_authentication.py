"""Who gets in: exactly those who have the secret of the job, and nobody where nobody can say who has it."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import authentication, port_guard, sockets
from persia_cli.wire.authentication import require_login
from persia_cli.wire.context import Context
from persia_cli.wire.keys import new_keys
from persia_cli.wire.loop import Loop
from persia_cli.wire.messages import WaitCredit
from persia_cli.wire.secret import JobSecret, new_secret
from tests.conftest import poll_for
from tests.support.closing import close_in_time

IN_S = 5.0
OUT_MS = 700
"""In this time a client with the right secret is in many times over."""
LIMIT_S = 10.0
ANY = "tcp://127.0.0.1:0"
KEYS = new_keys()
MANY = 3000
"""Connections, with more events than libzmq keeps for who follows them."""


@pytest.fixture
def keyed() -> Iterator[Context]:
    made = Context(JobSecret.of(KEYS))
    yield made
    close_in_time(made, LIMIT_S)


@pytest.fixture
def foreign() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context of somebody else, who uses ZeroMQ as he likes."""
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


def test_a_process_with_the_keys_is_in_and_what_it_says_is_encrypted(keyed: Context) -> None:
    router = sockets.router(keyed, ANY)
    dealer = sockets.dealer(keyed, sockets.bound_address(router), b"d")
    assert comes_through(router, dealer, IN_S * 1000)
    assert router.getsockopt(zmq.MECHANISM) == dealer.getsockopt(zmq.MECHANISM) == zmq.CURVE
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


STRANGERS = ("nothing", "the public key", "the public key and keys of its own", "the token", "the keys of another job")


@pytest.mark.parametrize("has", STRANGERS)
def test_strangers_stay_out(
    keyed: Context,
    foreign: zmq.Context[zmq.Socket[bytes]],
    has: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_guard, "HANDSHAKE_S", 0.2)
    router = sockets.router(keyed, ANY)
    address, other = sockets.bound_address(router), new_keys()
    pair = {"curve_secretkey": other.secret, "curve_publickey": other.public}
    options: dict[str, bytes] = {
        "nothing": {},
        # As if it knew no more: a client of CURVE needs some pair.
        "the public key": {**pair, "curve_serverkey": KEYS.public, "curve_publickey": KEYS.public},
        "the public key and keys of its own": {**pair, "curve_serverkey": KEYS.public},
        "the token": {"plain_username": b"persia", "plain_password": KEYS.token.hex().encode()},
        "the keys of another job": {**pair, "curve_serverkey": other.public},
    }[has]
    dealer = hostile(foreign, address, **options)
    try:
        with caplog.at_level(logging.WARNING):
            assert not comes_through(router, dealer, OUT_MS)
            assert router.guard is not None
            guard = router.guard
            poll_for(lambda: "were refused" in caplog.text, LIMIT_S, "a line of the log")
            poll_for(lambda: guard.turned_away > 0, LIMIT_S, "refused connections to count")
        [line] = [record.getMessage() for record in caplog.records if "were refused" in record.getMessage()]
        assert f"connections to {address} were refused, one from " in line
        assert re.search("from (127.0.0.1|an address that is gone): it (has|does not have|ended|is no)", line)
        for secret in (KEYS.secret, KEYS.public, KEYS.token.hex().encode()):
            assert secret.decode() not in caplog.text
        friend = sockets.dealer(keyed, address, b"d")
        assert comes_through(router, friend, IN_S * 1000)
        friend.close()
    finally:
        dealer.close()
        router.close()


def test_a_process_without_keys_does_not_get_into_a_job_that_has_some_nor_the_other_way_round(keyed: Context) -> None:
    with Context(new_secret()) as plain:
        for server, client in ((keyed, plain), (plain, keyed)):
            router = sockets.router(server, ANY)
            dealer = sockets.dealer(client, sockets.bound_address(router), b"d")
            try:
                assert not comes_through(router, dealer, OUT_MS)
                poll_for(lambda dealer=dealer: dealer.hung_up > 0, LIMIT_S, "a connection to be ended")
            finally:
                dealer.close()
                router.close()


def test_a_role_with_other_keys_says_so_at_once_and_at_its_end(
    keyed: Context, caplog: pytest.LogCaptureFixture
) -> None:
    hint = "it hangs up on every connection: give it and this role the same --token-file or --key-file"
    with Context(JobSecret.of(new_keys())) as other:
        server, client_loop = Loop(keyed, "server"), Loop(other, "role")
        address = server.serve(ANY).address
        client = client_loop.connect(address, "coordinator", b"role", retry_s=0.05, silence_timeout_s=3.0)
        client.request(WaitCredit(0, 1))

        def end() -> None:
            while True:
                client_loop.poll(0.05)

        with caplog.at_level(logging.WARNING), pytest.raises(WireError, match=f"not answered for 3 s .*; {hint}"):
            end()
        said = [record.getMessage() for record in caplog.records if "not answered yet" in record.getMessage()]
        assert said == [f"coordinator at {address} has not answered yet; {hint}"]
        client_loop.close()
        server.close()


def test_nobody_gets_in_where_nobody_authenticates(keyed: Context, foreign: zmq.Context[zmq.Socket[bytes]]) -> None:
    """By itself libzmq would admit everybody, with whatever keys, who knows the server's public one."""
    server = foreign.socket(zmq.ROUTER)
    require_login(server, KEYS)
    server.bind("tcp://127.0.0.1:*")
    dealer = sockets.dealer(keyed, sockets.bound_address(server), b"d")
    dealer.send(b"hello")
    assert not server.poll(OUT_MS)
    server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)
    server.bind("tcp://127.0.0.1:*")
    admitted = sockets.dealer(keyed, sockets.bound_address(server), b"d")
    admitted.send(b"hello")
    assert server.poll(IN_S * 1000)
    for each in (dealer, admitted, server):
        each.close()


def test_nobody_gets_in_once_the_authentication_has_died_and_who_is_in_stays_whoever_tries(
    keyed: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(authentication, "NEW_CONNECTIONS", MANY)
    router = sockets.router(keyed, ANY)
    address = sockets.bound_address(router)
    early = sockets.dealer(keyed, address, b"early")
    assert comes_through(router, early, IN_S * 1000)

    def die() -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr(keyed._authenticator, "_answer", die)
    late = sockets.dealer(keyed, address, b"late")
    assert not comes_through(router, late, OUT_MS)
    # libzmq has events of each of these, and would wait with all connections until somebody takes them.
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    for _ in range(MANY):
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert comes_through(router, early, IN_S * 1000)
    assert not comes_through(router, late, OUT_MS)
    [line] = [each.getMessage() for each in caplog.records if "authentication" in each.getMessage()]
    assert line == "authentication has failed, so nobody else gets into this process: RuntimeError('made up')"
    for each in (early, late, router):
        each.close()


def test_a_descriptor_that_is_no_connection_any_more_has_no_client_and_is_left_alone() -> None:
    for other in (os.eventfd(0), socket.socket().detach()):
        before = set(Path("/proc/self/fd").iterdir())
        assert port_guard.client_of(other) == ""
        assert set(Path("/proc/self/fd").iterdir()) == before
        os.close(other)
        assert port_guard.client_of(other) == ""


def test_refusals_are_logged_now_and_then_and_all_are_counted(
    keyed: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_guard, "HANDSHAKE_S", 0.2)
    router = sockets.router(keyed, ANY)
    guard = router.guard
    assert guard is not None
    host, _, port = sockets.bound_address(router).removeprefix("tcp://").rpartition(":")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        poll_for(lambda: guard.turned_away == 50, LIMIT_S, "all to count")
        poll_for(lambda: caplog.records, LIMIT_S, "a line of the log")
    router.close()
    [line] = [record.getMessage() for record in caplog.records]
    assert 1 <= int(line.split()[0]) <= 50
    assert "it is no process of persia" in line


def test_where_the_system_has_no_filter_a_flood_is_told_once_and_clients_get_in(
    keyed: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "NEW_CONNECTIONS", 5)
    for option in ("_SO_ATTACH_FILTER", "_SO_DETACH_FILTER"):
        monkeypatch.setattr(port_guard, option, 9999)
    router = sockets.router(keyed, ANY)
    guard = router.guard
    assert guard is not None
    host, _, port = sockets.bound_address(router).removeprefix("tcp://").rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    poll_for(lambda: guard._accepted == 20, LIMIT_S, "all to count")
    friend = sockets.dealer(keyed, sockets.bound_address(router), b"friend")
    assert comes_through(router, friend, IN_S * 1000)
    told = [each.getMessage() for each in caplog.records if "cannot be held off" in each.getMessage()]
    assert 1 <= len(told) <= 2
    assert told[0].startswith(f"a flood of connections to tcp://{host}:{port} cannot be held off: ")
    for each in (friend, router):
        each.close()


def test_without_keys_no_address_beyond_this_machine_is_used(context: Context) -> None:
    for use in (
        lambda: sockets.router(context, "tcp://10.1.2.3:0"),
        lambda: sockets.dealer(context, "tcp://10.1.2.3:7", b"d"),
    ):
        with pytest.raises(
            WireError, match="can be reached from other machines, so its connections have to be encrypted"
        ):
            use()


def test_with_keys_or_trust_it_is(keyed: Context) -> None:
    with Context(trusts_network=True) as trusting:
        for context in (keyed, trusting):
            with pytest.raises(WireError, match=r"cannot listen at tcp://10.1.2.3:0: Cannot assign requested address"):
                sockets.router(context, "tcp://10.1.2.3:0")
            sockets.dealer(context, "tcp://10.1.2.3:7", b"d").close()
            with pytest.raises(WireError, match="stands for every network interface"):
                sockets.router(context, "tcp://0.0.0.0:0")
