"""The server against a DEALER that the test controls."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import zmq

from persia_cli.errors import WireError
from persia_cli.wire import server as server_module
from persia_cli.wire import sockets
from persia_cli.wire.frames import decode, encode
from persia_cli.wire.message import BatchId, Message, TableTotals
from persia_cli.wire.messages import (
    Ack,
    Credit,
    GroupKeys,
    LookedUp,
    LookedUpRows,
    LookUp,
    Pending,
    Pull,
    PutIds,
    Refused,
    WaitCredit,
)
from persia_cli.wire.server import Peer, Server
from persia_cli.wire.sockets import Context
from tests.conftest import poll_for
from tests.support.any_message import same

BATCH = BatchId(split=0, step=7, rank=0)


def found(rows: int) -> LookedUp:
    return LookedUp(1, TableTotals(), [LookedUpRows(np.zeros((rows, 8), np.uint8), np.empty(0, np.uint32))])


class Asker:
    """A client that sends exactly the messages of a test."""

    def __init__(self, context: Context, identity: bytes = b"asker") -> None:
        self.socket = sockets.dealer(context, "inproc://server", identity)

    def ask(self, number: int, message: Message) -> None:
        assert sockets.send(self.socket, encode(number, message))

    def hear(self) -> list[tuple[int, Message]]:
        """The received replies."""
        heard = []
        while (frames := sockets.receive(self.socket)) is not None:
            heard.append(decode(frames))
        return heard


class Handlers:
    """Parks WaitCredit, answers look-ups, refuses ids."""

    def __init__(self) -> None:
        self.server: Server
        self.parked: list[Peer] = []
        self.look_ups = 0

    def register(self, server: Server) -> None:
        self.server = server
        server.on(WaitCredit, self.park)
        server.on(LookUp, self.look_up)
        server.on(PutIds, self.refuse)

    def park(self, peer: Peer, message: WaitCredit) -> None:
        self.parked.append(peer)

    def look_up(self, peer: Peer, message: LookUp) -> None:
        self.look_ups += 1
        self.server.reply(peer, found(len(message.groups[0].keys)))

    def refuse(self, peer: Peer, message: PutIds) -> None:
        raise WireError("this batch is over")


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def server(context: Context, handlers: Handlers) -> Iterator[Server]:
    made = Server(context, "inproc://server", "nn-worker-0")
    handlers.register(made)
    yield made
    made.close()


@pytest.fixture
def asker(context: Context, server: Server) -> Iterator[Asker]:
    made = Asker(context)
    yield made
    made.socket.close()


def test_a_parked_request_is_pending_until_its_answer(server: Server, asker: Asker, handlers: Handlers) -> None:
    asker.ask(5, WaitCredit(0, 3))
    server.receive()
    assert asker.hear() == []
    assert len(server._parked) == 1
    for _ in range(2):
        asker.ask(5, WaitCredit(0, 3))
    server.receive()
    assert asker.hear() == [(5, Pending()), (5, Pending())]
    assert handlers.parked == [Peer(b"asker", 5)]
    server.reply(handlers.parked[0], Credit(4))
    asker.ask(5, WaitCredit(0, 3))  # as if the answer was lost
    server.receive()
    assert asker.hear() == [(5, Credit(4)), (5, Credit(4))]
    assert (len(handlers.parked), server.repeated) == (1, 3)


def test_acknowledgements_that_no_client_waits_for_are_sent_together(
    server: Server, asker: Asker, handlers: Handlers
) -> None:
    """They come soon, or with the next answer to the client; a repeat meanwhile gets its own at once."""
    server.on(Pull, lambda peer, message: server.acknowledge(peer))
    for number in (5, 6, 6):
        asker.ask(number, Pull(BATCH, 0))
    server.receive()
    assert asker.hear() == [(6, Ack())]
    heard: list[tuple[int, Message]] = []

    def hear() -> bool:
        server.tick()
        heard.extend(asker.hear())
        return bool(heard)

    poll_for(hear, 5.0, "an acknowledgement")
    assert heard == [(5, Ack((6,)))]
    asker.ask(7, Pull(BATCH, 0))
    asker.ask(8, WaitCredit(0, 3))
    server.receive()
    server.reply(handlers.parked[0], Credit(4))
    assert asker.hear() == [(8, Credit(4)), (7, Ack())]


def test_a_lost_answer_with_arrays_is_made_again(server: Server, asker: Asker, handlers: Handlers) -> None:
    keys = GroupKeys(np.zeros(3, np.uint64), np.zeros(3, np.uint16))
    for _ in range(2):
        asker.ask(5, LookUp(BATCH, True, (), [keys]))
        server.receive()
    first, second = asker.hear()
    assert first[0] == second[0] == 5
    assert same(first[1], second[1])
    assert handlers.look_ups == 2


def test_a_peer_without_a_name_is_passed_over(context: Context, server: Server, handlers: Handlers) -> None:
    with context.socket(zmq.DEALER) as nameless:
        nameless.connect("inproc://server")
        nameless.send_multipart(encode(5, WaitCredit(0, 3)))
        server.receive()
        assert (handlers.parked, len(server._parked), server.nameless) == ([], 0, 1)
        assert not nameless.poll(0)


def test_errors_of_handlers_and_messages_without_one_are_refused(server: Server, asker: Asker) -> None:
    asker.ask(5, PutIds(BATCH, 0, np.zeros(0, np.uint64), np.zeros(1, np.uint32)))
    asker.ask(6, Ack())
    server.receive()
    assert asker.hear() == [
        (5, Refused("this batch is over")),
        (6, Refused("nn-worker-0 does not accept Ack messages")),
    ]
    assert server.refused == 2


GARBAGE = [
    [b""],
    [b"\x12"],
    [b"\xff", b"\xff"],
    [b"\x12", b"\x93"],
    [b"random", b"bytes", b"of", b"some", b"length"],
    [bytes((Pull.KIND,)), b""],
    [b"\x12", b"\xff" * 1000],
    [b"x"] * 5000,
]


def test_garbage_is_counted_and_the_server_goes_on(server: Server, asker: Asker, handlers: Handlers) -> None:
    for frames in GARBAGE:
        asker.socket.send_multipart(frames)
    random = np.random.default_rng(0)
    for _ in range(200):
        frames = [random.bytes(size) for size in random.integers(0, 40, random.integers(1, 5))]
        asker.socket.send_multipart([bytes((WaitCredit.KIND,)), *frames])
    asker.ask(5, WaitCredit(0, 3))
    # A call takes no longer than some milliseconds, in which a busy machine may have done little.
    poll_for(lambda: server.receive() or handlers.parked, 20.0, "the request after the garbage")
    assert server.refused == len(GARBAGE) + 200
    assert handlers.parked == [Peer(b"asker", 5)]


def test_a_reply_to_a_peer_that_does_not_read_is_dropped_and_counted(
    server: Server, asker: Asker, handlers: Handlers
) -> None:
    asker.ask(1, WaitCredit(0, 3))
    server.receive()
    sent = 4 * sockets.QUEUED_MESSAGES
    for number in range(sent):
        server.reply(Peer(b"asker", number), Ack())
    assert server.dropped > 0
    assert len(asker.hear()) == sent - server.dropped


def test_remembered_answers_are_bounded_in_bytes(
    server: Server, asker: Asker, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ANSWERS_BYTES", 2500)
    for number in range(4):
        asker.ask(number, WaitCredit(0, number))
    server.receive()
    for peer in handlers.parked:
        server.reply(peer, Refused("x" * 1000))
    asker.hear()
    for number in range(4):
        asker.ask(number, WaitCredit(0, number))
    server.receive()
    assert [number for number, _ in asker.hear()] == [2, 3], "the latest are remembered"
    assert len(handlers.parked) == 6, "the others go to the handler again"


def test_requests_go_unanswered_until_there_is_a_handler(context: Context) -> None:
    """A restarted replica may get requests before its role is ready; they must not end the process."""
    with closing(Server(context, "inproc://server", "nn-worker-0")) as server:
        early = Asker(context)
        with closing(early.socket):
            early.ask(1, WaitCredit(0, 3))
            server.receive()
            assert early.hear() == []
            server.on(WaitCredit, lambda peer, message: server.reply(peer, Credit(4)))
            early.ask(1, WaitCredit(0, 3))
            server.receive()
            assert early.hear() == [(1, Credit(4))]
            assert (server.refused, len(server._parked)) == (0, 0)
