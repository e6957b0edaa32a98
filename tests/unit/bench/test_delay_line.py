"""A delay line hands every message on, in order, the wanted time after it came."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from persia_cli.bench.delay_line import IDLE_S, DelayLine, NetworkLink, run_lines
from persia_cli.wire import sockets
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for

DELAY_S = 0.03
FRONT, BACK = "inproc://front", "inproc://back"


@contextmanager
def lined(context: Context, delay_s: float) -> Iterator[DelayLine]:
    line = DelayLine(context, FRONT, BACK, NetworkLink(delay_s * 1e3))
    stop = threading.Event()
    thread = threading.Thread(target=run_lines, args=([line], stop.is_set))
    thread.start()
    try:
        yield line
    finally:
        stop.set()
        thread.join()
        line.close()


class Ends:
    """A server and its clients, closed when the test ends."""

    def __init__(self) -> None:
        self.context = Context()
        self._made: list[sockets.Socket] = []

    def server(self) -> sockets.Socket:
        self._made.append(sockets.router(self.context, BACK))
        return self._made[-1]

    def client(self, name: str = "client") -> sockets.Socket:
        self._made.append(sockets.dealer(self.context, FRONT, name.encode()))
        return self._made[-1]

    def close(self) -> None:
        for socket in self._made:
            socket.close()
        self.context.term()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def received(socket: sockets.Socket) -> list[bytes]:
    found: list[list[bytes]] = []

    def take() -> bool:
        frames = sockets.receive(socket)
        if frames is not None:
            found.append([frame.bytes for frame in frames])
        return bool(found)

    poll_for(take, 5.0, "a message")
    return found[0]


def test_messages_of_many_clients_keep_order_and_name(ends: Ends) -> None:
    server = ends.server()
    with lined(ends.context, DELAY_S) as line:
        clients = [ends.client(f"client-{number}") for number in range(3)]
        for number in range(200):
            for client in clients:
                assert sockets.send(client, [b"%d" % number, bytes(1000)])
        came: dict[bytes, list[int]] = {}
        for _ in range(600):
            identity, body, rest = received(server)
            assert len(rest) == 1000
            came.setdefault(identity, []).append(int(body))
            assert sockets.send(server, [identity, b"re " + body])
        assert came == {f"client-{number}".encode(): list(range(200)) for number in range(3)}
        for client in clients:
            assert [received(client) for _ in range(200)] == [[b"re %d" % number] for number in range(200)]
        assert (line.passed, line.dropped) == (1200, 0)


def test_messages_enter_a_link_one_after_the_other_in_each_direction(ends: Ends) -> None:
    """At 1 Mbit/s 125,000 bytes take a second, and the delay comes after that."""
    clock = [100.0]
    server = ends.server()
    line = DelayLine(ends.context, FRONT, BACK, NetworkLink(500.0, mbit_per_s=1.0), clock=lambda: clock[0])
    try:
        client = ends.client()
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
        line.close()
