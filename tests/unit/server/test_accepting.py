"""Workers share what comes to their socket: about as many connections each, and none waits for one that hangs."""

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import uvloop

from persia_cli.server import accepting
from persia_cli.server.accepting import Accepting, ConnectionCounts
from tests.conftest import poll_for

WITHIN_S = 20.0
MANY = 200


class Held(asyncio.Protocol):
    """A connection of a worker, which counts it, and notes its end."""

    def __init__(self, own: set[Any], begun: list[Accepting]) -> None:
        self._own, self._begun = own, begun

    def connection_made(self, transport: Any) -> None:
        self._own.add(self)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._own.discard(self)
        self._begun[0].note()


@contextmanager
def worker(listener: Any, descriptor: int, number: int, workers: int) -> Iterator[set[Any]]:
    """Take connections on a loop of a thread; yields those that it has."""
    own: set[Any] = set()
    loop = uvloop.new_event_loop()
    counts = ConnectionCounts(os.dup(descriptor), workers)
    begun: list[Accepting] = []

    def connect() -> Any:
        return Held(own, begun)

    async def begin() -> None:
        begun.append(Accepting(listener, None, connect, counts, number, lambda: len(own)))

    def run() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()

    def end() -> None:
        begun[0].close()
        for task in begun[0]._beginning:
            task.cancel()
        for each in own:
            each._transport.abort()
        loop.call_later(0.05, loop.stop)

    thread = threading.Thread(target=run)
    thread.start()
    poll_for(lambda: begun, WITHIN_S, "a worker that takes connections")
    try:
        yield own
    finally:
        loop.call_soon_threadsafe(end)
        thread.join(WITHIN_S)
        loop.close()
        counts.close()


@contextmanager
def connected(listener: socket.socket, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(closing(socket.create_connection(listener.getsockname())))
        yield


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as found:
        yield found


def test_connections_that_come_at_once_are_shared_evenly(listener: socket.socket) -> None:
    with closing(ConnectionCounts.new(2)) as counts, ExitStack() as stack:
        both = [stack.enter_context(worker(listener, counts.descriptor, number, 2)) for number in range(2)]
        with connected(listener, MANY):
            poll_for(lambda: sum(map(len, both)) == MANY, WITHIN_S, "all connections")
            assert min(map(len, both)) >= 0.4 * MANY, [len(each) for each in both]


def test_a_new_worker_gets_what_comes_until_it_has_as_many(listener: socket.socket) -> None:
    with closing(ConnectionCounts.new(2)) as counts, ExitStack() as stack:
        first = stack.enter_context(worker(listener, counts.descriptor, 0, 2))
        with connected(listener, 40):
            # There is nobody else, so that it waits for nobody.
            poll_for(lambda: len(first) == 40, WITHIN_S, "the connections of the first worker")
            second = stack.enter_context(worker(listener, counts.descriptor, 1, 2))
            with connected(listener, 30):
                poll_for(lambda: len(first) + len(second) == 70, WITHIN_S, "the connections of both")
                assert len(second) >= 24, (len(first), len(second))


def test_one_takes_all_where_another_hangs(listener: socket.socket) -> None:
    with closing(ConnectionCounts.new(2)) as counts, ExitStack() as stack:
        counts.note(1, 0)  # and does nothing more
        own = stack.enter_context(worker(listener, counts.descriptor, 0, 2))
        begin = time.monotonic()
        with connected(listener, MANY):
            poll_for(lambda: len(own) == MANY, WITHIN_S, "all connections")
        assert time.monotonic() - begin < 2.0


def test_a_connection_that_has_ended_counts_no_more(listener: socket.socket) -> None:
    """Else the one worker that had many would be passed over, and the others get all that come."""
    with closing(ConnectionCounts.new(2)) as counts, ExitStack() as stack:
        both = [stack.enter_context(worker(listener, counts.descriptor, number, 2)) for number in range(2)]
        with connected(listener, 20):
            poll_for(lambda: sum(map(len, both)) == 20, WITHIN_S, "all connections")
            poll_for(lambda: sorted(counts.of_others(2)) == sorted(map(len, both)), WITHIN_S, "the counts")
        poll_for(lambda: counts.of_others(2) == [0, 0], WITHIN_S, "counts of none")


def test_what_the_others_leave_is_taken_one_at_a_time_at_first(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may compute, and take some as soon as they have done; if they took none, it is twice as many each time."""
    taken: list[int] = []
    take = Accepting._take

    def noting(self: Accepting, most: int) -> None:
        if self._waiting is None and sum(self._counts.of_others(1)):
            taken.append(most)
        take(self, most)

    monkeypatch.setattr(Accepting, "_take", noting)
    with closing(ConnectionCounts.new(2)) as counts, ExitStack() as stack:
        counts.note(1, 0)
        own = stack.enter_context(worker(listener, counts.descriptor, 0, 2))
        with connected(listener, 64):
            poll_for(lambda: len(own) == 64, WITHIN_S, "all connections")
    assert taken[:5] == [1, 2, 4, 8, 16]


def test_nobody_waits_for_one_that_has_ended() -> None:
    with closing(ConnectionCounts.new(3)) as counts:
        assert counts.note(0, 5) == 0
        assert counts.note(1, 7) == 2
        counts.forget(0)
        assert counts.note(1, 7) == 0


def test_a_process_without_room_for_files_takes_them_later(listener: socket.socket) -> None:
    class Full:
        """A listening socket for which the system has no connection at first."""

        failures = 3

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return listener.accept()

    full = Full()
    with (
        closing(ConnectionCounts.new(1)) as counts,
        worker(full, counts.descriptor, 0, 1) as own,
        connected(listener, 5),
    ):
        poll_for(lambda: len(own) == 5, WITHIN_S, "all connections")
    assert full.failures == 0


def test_what_is_not_encrypted_yet_counts_and_is_bounded(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half handshakes would else take all files of a process."""
    monkeypatch.setattr(accepting, "MOST_CONNECTIONS", 5)
    monkeypatch.setattr(accepting, "BEYOND", 2)
    never = asyncio.Event

    async def begin(self: Accepting, connection: socket.socket) -> None:
        with connection:
            await never().wait()

    monkeypatch.setattr(Accepting, "_begin", begin)
    with closing(ConnectionCounts.new(1)) as counts, ExitStack() as stack:
        server = stack.enter_context(worker(listener, counts.descriptor, 0, 1))
        clients = [
            stack.enter_context(closing(socket.create_connection(listener.getsockname()))) for _ in range(10)
        ]  # fmt: skip

        def refused() -> int:
            return sum(_is_closed(client) for client in clients)

        poll_for(lambda: refused() == 2, WITHIN_S, "those beyond the bound to be closed")
        assert not server


def _is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
