"""Where sockets may be, and what they are set to."""

import os
import stat
from pathlib import Path

import pytest
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import MAX_FRAMES, MAX_MESSAGE_BYTES, MalformedMessage
from persia_cli.wire.sockets import Context

ELSEWHERE = [
    "tcp://0.0.0.0:0",
    "tcp://*:0",
    "tcp://10.1.2.3:5555",
    "tcp://localhost:0",
    "tcp://[::]:0",
    "tcp://128.0.0.1:1",
]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_only_the_loopback_interface_is_used(context: Context, address: str) -> None:
    with pytest.raises(WireError, match="not on the loopback interface"):
        sockets.router(context, address)
    with pytest.raises(WireError, match="not on the loopback interface"):
        sockets.dealer(context, address, b"d")


@pytest.mark.parametrize("address", ["", "udp://127.0.0.1:1", "127.0.0.1:1", "ipc://", "ipc://*", "inproc://", "tcp:/"])
def test_other_addresses_are_none(context: Context, address: str) -> None:
    with pytest.raises(WireError, match="is no address"):
        sockets.router(context, address)


def test_a_port_is_chosen_and_told(context: Context) -> None:
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


def test_every_option_is_set(context: Context) -> None:
    router = sockets.router(context, "tcp://127.0.0.1:0")
    dealer = sockets.dealer(context, sockets.bound_address(router), b"worker-0#1")
    for socket in (router, dealer):
        assert socket.getsockopt(zmq.LINGER) == 0
        assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == sockets.QUEUED_MESSAGES
        assert socket.getsockopt(zmq.MAXMSGSIZE) == MAX_MESSAGE_BYTES
        assert socket.getsockopt(zmq.RECONNECT_IVL) == 20
        assert socket.getsockopt(zmq.RECONNECT_IVL_MAX) == 500
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 2000
        assert socket.getsockopt(zmq.HEARTBEAT_TIMEOUT) == 6000
    assert dealer.getsockopt(zmq.IDENTITY) == b"worker-0#1"
    router.close()
    dealer.close()


def test_the_private_directory_is_private_and_goes_away() -> None:
    with sockets.private_directory() as directory:
        mode = directory.stat().st_mode
        assert stat.S_IMODE(mode) == 0o700
        assert directory.stat().st_uid == os.getuid()
        (directory / "left-over").touch()
    assert not directory.exists()


def test_a_path_too_long_for_a_unix_socket_is_named(context: Context) -> None:
    deep = Path("/tmp") / ("d" * 120)
    with pytest.raises(WireError, match="set TMPDIR to a shorter path"):
        sockets.ipc_address(deep, "server")
    with pytest.raises(WireError, match="longer than the 107 characters"):
        sockets.router(context, f"ipc://{deep}")


def test_a_full_queue_and_an_unknown_peer_are_told_at_once(context: Context) -> None:
    router = sockets.router(context, "inproc://here")
    assert not sockets.send(router, [b"nobody", b"x"])
    dealer = sockets.dealer(context, "inproc://nobody-listens", b"d")
    taken = 0
    while sockets.send(dealer, [b"x"]):
        taken += 1
    assert 0 < taken <= 2 * sockets.QUEUED_MESSAGES
    router.close()
    dealer.close()


def test_a_message_of_endless_frames_is_drained_and_refused(context: Context) -> None:
    router = sockets.router(context, "inproc://here")
    dealer = sockets.dealer(context, "inproc://here", b"d")
    dealer.send_multipart([b"x"] * (MAX_FRAMES + 5))
    dealer.send(b"next")
    with pytest.raises(MalformedMessage, match=f"{MAX_FRAMES + 6} frames"):
        sockets.receive(router)
    frames = sockets.receive(router)
    assert frames is not None
    assert [frame.bytes for frame in frames] == [b"d", b"next"]
    assert sockets.receive(router) is None
    router.close()
    dealer.close()
