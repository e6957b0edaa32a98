"""Valid addresses and errors for all others, and the sockets there."""

from pathlib import Path

import pytest

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.addresses import check_address, check_reachable, ipc_address, is_remote
from persia_cli.wire.frames import MAX_FRAMES, MalformedMessage
from persia_cli.wire.sockets import Context

WRONG = {
    "": "does not begin with tcp:// or ipc://",
    "ws://127.0.0.1:1": "is not an address that persia supports; use tcp://127.0.0.1:PORT or ipc://PATH",
    "inproc://": "is not an address that persia supports",
    " tcp://127.0.0.1:1": "contains a space",
    "tcp://127.0.0.1:1\n": "contains a space",
    "tcp://127.0.0.1": "has no port; use tcp://127.0.0.1:PORT",
    "tcp://127.0.0.1:65536": "'65536' is not a number from 1 to 65535",
    "tcp://127.0.0.1:-1": "'-1' is not a number from 1 to 65535",
    "tcp://[::1]:7000": "is an IPv6 address",
    "tcp://localhost:7000": "use tcp://127.0.0.1:7000",
    "tcp://*:7000": "contains a host name, but an IP address is needed",
    "tcp://0.0.0.0:7000": "stands for every network interface of the machine; use the IP address of the one",
    "tcp://10.1.2.3:7000": "can be reached from other machines",
    "tcp://128.0.0.1:7000": "`persia keys new FILE`",
    "ipc://": "does not contain a file path",
    "ipc:///tmp/": "does not contain a file path",
    "ipc:///no/such/folder/server": "the folder /no/such/folder does not exist; create it first",
}


@pytest.mark.parametrize(("address", "problem"), WRONG.items())
def test_a_wrong_address_is_refused_with_what_to_do(context: Context, address: str, problem: str) -> None:
    for use in (check_address, check_reachable, lambda each: sockets.router(context, each)):
        with pytest.raises(WireError) as caught:
            use(address)
        assert problem in str(caught.value)
    with pytest.raises(WireError):
        sockets.dealer(context, address, b"d")


def test_valid_addresses_are_accepted(tmp_path: Path) -> None:
    for address in ("tcp://127.0.0.1:1", "tcp://127.3.2.1:65535", "ipc://server", f"ipc://{tmp_path}/server"):
        check_address(address)
        check_reachable(address)
    for address in ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "inproc://here"):
        check_address(address)


def test_addresses_of_other_machines_need_permission() -> None:
    for address in ("tcp://10.1.2.3:7000", "tcp://128.0.0.1:1"):
        check_address(address, allows_remote=True)
        assert is_remote(address)
    for address in ("tcp://127.9.9.9:7000", "ipc://server", "inproc://here"):
        assert not is_remote(address)
    with pytest.raises(WireError, match="stands for every network interface"):
        check_address("tcp://0.0.0.0:7000", allows_remote=True)


def test_port_0_is_refused_for_connections() -> None:
    for address in ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*"):
        with pytest.raises(WireError, match=r"the coordinator chose a free port.* give the printed address"):
            check_reachable(address)
    with pytest.raises(WireError, match="can be reached from one process only"):
        check_reachable("inproc://here")


def test_a_path_too_long_for_a_unix_socket_is_named(context: Context) -> None:
    deep = Path("/tmp") / ("d" * 120)
    with pytest.raises(WireError, match="use a shorter path, or set TMPDIR to one"):
        ipc_address(deep, "server")
    with pytest.raises(WireError, match="longer than 107 bytes"):
        sockets.router(context, f"ipc://{deep}")


def test_a_port_is_chosen_and_returned(context: Context) -> None:
    for asked in ("tcp://127.0.0.1:0", "tcp://127.0.0.1:*"):
        socket = sockets.router(context, asked)
        host, port = sockets.bound_address(socket).rsplit(":", 1)
        socket.close()
        assert host == "tcp://127.0.0.1"
        assert int(port) > 0


def test_a_taken_address_is_named(context: Context) -> None:
    first = sockets.router(context, "tcp://127.0.0.1:0")
    taken = sockets.bound_address(first)
    with pytest.raises(WireError, match=f"cannot listen at {taken}: Address already in use"):
        sockets.router(context, taken)
    first.close()


def test_a_message_of_endless_frames_is_drained_and_refused(context: Context) -> None:
    router = sockets.router(context, "inproc://here")
    dealer = sockets.dealer(context, "inproc://here", b"d")
    dealer.send_multipart([b"x"] * (MAX_FRAMES + 5))
    dealer.send(b"next")
    with pytest.raises(MalformedMessage, match=f"at most {MAX_FRAMES} frames, but this one has {MAX_FRAMES + 5}"):
        sockets.receive(router)
    frames = sockets.receive(router)
    assert frames is not None
    assert [frame.bytes for frame in frames] == [b"d", b"next"]
    assert sockets.receive(router) is None
    router.close()
    dealer.close()
