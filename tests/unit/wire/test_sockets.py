"""Addresses and options of sockets."""

import pytest
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import MAX_FRAMES, MalformedMessage
from persia_cli.wire.message import BATCH_PART
from persia_cli.wire.sockets import Context
from tests.support.closing import close_in_time


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


def test_every_option_is_set(context: Context) -> None:
    router = sockets.router(context, "tcp://127.0.0.1:0")
    dealer = sockets.dealer(context, sockets.bound_address(router), b"worker-0#1")
    for socket in (router, dealer):
        assert socket.getsockopt(zmq.LINGER) == 0
        assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == sockets.QUEUED_MESSAGES
        assert socket.getsockopt(zmq.MAXMSGSIZE) == BATCH_PART.nbytes
        assert socket.getsockopt(zmq.RECONNECT_IVL) == 20
        assert socket.getsockopt(zmq.RECONNECT_IVL_MAX) == 500
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 2000
        assert socket.getsockopt(zmq.HEARTBEAT_TIMEOUT) == 6000
    assert dealer.getsockopt(zmq.IDENTITY) == b"worker-0#1"
    router.close()
    dealer.close()


def test_a_full_queue_and_an_unknown_peer_are_reported_at_once(context: Context) -> None:
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
    with pytest.raises(MalformedMessage, match=f"at most {MAX_FRAMES} frames, but this one has {MAX_FRAMES + 5}"):
        sockets.receive(router)
    frames = sockets.receive(router)
    assert frames is not None
    assert [frame.bytes for frame in frames] == [b"d", b"next"]
    assert sockets.receive(router) is None
    router.close()
    dealer.close()


def test_a_context_with_an_open_socket_is_closed_by_its_deadline() -> None:
    """As the fixture does it: the test fails, and does not wait for ever."""
    context = Context()
    left_open = sockets.router(context, "tcp://127.0.0.1:0")
    with pytest.raises(pytest.fail.Exception, match=r"^a socket was left open$"):
        close_in_time(context, 2.0)
    assert context.closed
    assert left_open is not None
