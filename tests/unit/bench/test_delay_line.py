"""A delay line hands every message on, in order, the wanted time after it came."""

import pytest

from persia_cli.bench.delay_line import IDLE_S, DelayLine, NetworkLink
from persia_cli.wire import sockets
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for

FRONT, BACK = "inproc://front", "inproc://back"


def received(socket: sockets.Socket) -> list[bytes]:
    found: list[list[bytes]] = []

    def take() -> bool:
        frames = sockets.receive(socket)
        if frames is not None:
            found.append([frame.bytes for frame in frames])
        return bool(found)

    poll_for(take, 5.0, "a message")
    return found[0]


def test_messages_enter_a_link_one_after_the_other_in_each_direction() -> None:
    """At 1 Mbit/s 125,000 bytes take a second, and the delay comes after that."""
    clock = [100.0]
    context = Context()
    server, client = sockets.router(context, BACK), sockets.dealer(context, FRONT, b"client")
    line = DelayLine(context, FRONT, BACK, NetworkLink(500.0, mbit_per_s=1.0), clock=lambda: clock[0])
    try:
        sockets.send(client, [b"", bytes(125_000)])
        poll_for(line.step, 5.0, "the first message taken")
        sockets.send(client, [bytes(62_500)])
        poll_for(line.step, 5.0, "the second message taken")
        assert line.wait_s == IDLE_S
        clock[0] = 101.499
        assert not line.step()
        clock[0] = 101.5
        assert line.step()
        assert [len(part) for part in received(server)] == [6, 0, 125_000]
        sockets.send(server, [b"client", bytes(12_500)])
        poll_for(line.step, 5.0, "the reply taken")
        clock[0] = 101.999
        assert not line.step()
        assert line.wait_s == pytest.approx(0.001)
        clock[0] = 102.0  # half a second after the first message, of which this one is half
        assert line.step()
        assert len(received(server)[1]) == 62_500
        clock[0] = 102.11  # it came at 101.5, and has not waited for the other direction
        assert line.step()
        assert len(received(client)[0]) == 12_500
    finally:
        for each in (line, client, server):
            each.close()
        context.term()
