"""Addresses and options of sockets."""

import pytest

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.frames import MAX_FRAMES, MalformedMessage
from persia_cli.wire.sockets import Context


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
