"""The client against a ROUTER and a clock that the test controls."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from persia_cli.errors import WireError
from persia_cli.wire import sockets
from persia_cli.wire.client import Client
from persia_cli.wire.frames import decode, encode
from persia_cli.wire.message import BatchId, Message
from persia_cli.wire.messages import (
    Ack,
    Credit,
    GroupKeys,
    LookUp,
    Pending,
    Pull,
    PutIds,
    Refused,
    WaitCredit,
)
from persia_cli.wire.sockets import Context
from tests.support.any_message import same

BATCH = BatchId(split=0, step=7, rank=0)
PUT_IDS = PutIds(BATCH, 0, np.arange(3, dtype=np.uint64), np.arange(4, dtype=np.uint32))
LOOK_UP = LookUp(BATCH, True, (), [GroupKeys(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.uint16))])


class Peer:
    """A server that sends exactly the messages of a test."""

    def __init__(self, context: Context, address: str = "inproc://peer") -> None:
        self.socket = sockets.router(context, address)

    def take(self) -> tuple[int, Message] | None:
        """The next request."""
        frames = sockets.receive(self.socket)
        return None if frames is None else decode(frames[1:])

    def say(self, number: int, message: Message) -> None:
        assert sockets.send(self.socket, [b"me", *encode(number, message)])


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def peer(context: Context) -> Iterator[Peer]:
    made = Peer(context)
    yield made
    made.socket.close()


@pytest.fixture
def client(context: Context, peer: Peer, clock: Clock) -> Iterator[Client]:
    made = Client(context, "inproc://peer", "embedding-server-1", b"me", 0.5, 30.0, clock)
    yield made
    made.close()


def wait_out(client: Client, clock: Clock, seconds: float) -> None:
    """Let time pass and the client repeat due requests."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(client.due, end)
        client.tick()


def number_of(peer: Peer) -> int:
    taken = peer.take()
    assert taken is not None
    return taken[0]


def test_a_request_is_repeated_under_its_number_with_growing_waits(client: Client, peer: Peer, clock: Clock) -> None:
    client.request(LOOK_UP)
    numbers, times = {number_of(peer)}, []
    start = clock.now
    while clock.now < start + 20:
        clock.now += 0.25
        client.tick()
        taken = peer.take()
        if taken is not None:
            numbers.add(taken[0])
            times.append(clock.now - start)
            assert same(taken[1], LOOK_UP)
    assert len(numbers) == 1
    assert times == [0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5]
    assert client.resent == 7


def test_silence_is_an_error_with_peer_address_and_request(client: Client, clock: Clock) -> None:
    client.request(PUT_IDS, waiting_for="the ids of step 7 to be taken")
    start = clock.now
    with pytest.raises(WireError) as caught:
        wait_out(client, clock, 60)
    assert str(caught.value) == (
        "embedding-server-1 at inproc://peer has not answered for 30 s (waiting for the ids of step 7 to be taken)"
    )
    assert clock.now - start == pytest.approx(30.0)


def test_pending_is_a_sign_of_life(client: Client, peer: Peer, clock: Clock) -> None:
    heard: list[Message] = []
    client.request(WaitCredit(0, 5), on_reply=lambda reply: heard.append(reply))
    number, start = number_of(peer), clock.now
    while clock.now < start + 200:
        clock.now = client.due
        client.tick()
        assert number_of(peer) == number
        peer.say(number, Pending())
        client.receive()
    assert client.pending == 1
    peer.say(number, Credit(6))
    client.receive()
    assert heard == [Credit(6)]


def test_an_acknowledgement_of_several_requests_answers_each(client: Client, peer: Peer) -> None:
    answered: list[int] = []
    numbers = []
    for request in range(3):
        client.request(PUT_IDS, on_reply=lambda reply, request=request: answered.append(request))
        numbers.append(number_of(peer))
    peer.say(numbers[1], Ack((numbers[2], numbers[0], numbers[2])))
    client.receive()
    assert (answered, client.pending, client.late) == ([1, 2, 0], 0, 1)


def test_time_without_polling_is_not_the_peers_silence(client: Client, peer: Peer, clock: Clock) -> None:
    """The owner of the client was busy for a minute: it repeats the request before it reports silence."""
    client.request(WaitCredit(0, 5))
    number = number_of(peer)
    clock.now += 60
    client.receive()
    client.tick()
    assert number_of(peer) == number


def test_malformed_and_late_replies_are_counted(client: Client, peer: Peer) -> None:
    heard: list[Message] = []
    client.request(PUT_IDS, on_reply=lambda reply: heard.append(reply))
    number = number_of(peer)
    for garbage in ([b""], [b"\xff", b"\xff"], [b"\x01", b"\x90", b"more"], [b"x"] * 5000):
        peer.socket.send_multipart([b"me", *garbage])
    peer.say(number, Credit(1))  # no answer to PutIds
    client.receive()
    assert client.malformed == 5
    assert (heard, client.pending) == ([], 1)
    for _ in range(3):
        peer.say(number, Ack())
    client.receive()
    assert (heard, client.late) == ([Ack()], 2)


def test_a_refusal_is_an_error_with_peer_and_reason(client: Client, peer: Peer) -> None:
    client.request(Pull(BATCH), waiting_for="the embeddings of step 7")
    peer.say(number_of(peer), Refused("step 7 is over"))
    with pytest.raises(WireError, match=r"embedding-server-1 .* refused the embeddings of step 7: step 7 is over"):
        client.receive()


def test_silence_after_malformed_replies_mentions_them(client: Client, peer: Peer, clock: Clock) -> None:
    client.request(PUT_IDS)
    peer.socket.send_multipart([b"me", b"\xff", b"\xff"])
    client.receive()
    with pytest.raises(WireError, match="its last message could not be read"):
        wait_out(client, clock, 60)


def test_a_full_queue_does_not_block_and_everything_arrives_later(
    context: Context, client: Client, peer: Peer, clock: Clock
) -> None:
    heard: list[Message] = []
    asked = 3 * sockets.QUEUED_MESSAGES
    for step in range(asked):
        client.request(WaitCredit(0, step), on_reply=lambda reply: heard.append(reply))
    for _ in range(50):
        while (taken := peer.take()) is not None:
            assert isinstance(taken[1], WaitCredit)
            sockets.send(peer.socket, [b"me", *encode(taken[0], Credit(taken[1].step + 1))])
        client.receive()
        if len(heard) == asked:
            break
        clock.now += 4
        client.tick()
    assert client.resent > 0
    assert {reply.limit for reply in heard if isinstance(reply, Credit)} == set(range(1, asked + 1))
    assert len(heard) == asked


def test_a_callback_may_ask_again_or_close(client: Client, peer: Peer) -> None:
    client.request(WaitCredit(0, 1), on_reply=lambda reply: client.request(WaitCredit(0, 2), on_reply=close))

    def close(reply: Message) -> None:
        client.close()

    peer.say(number_of(peer), Credit(2))
    client.receive()
    number = number_of(peer)
    peer.say(number, Credit(3))
    peer.say(number, Credit(3))
    client.receive()
    assert client.socket.closed


def test_a_successor_of_the_same_identity_gets_new_numbers(context: Context, peer: Peer) -> None:
    numbers = set()
    for _ in range(3):
        client = Client(context, "inproc://peer", "peer", b"me", 0.5, 30.0)
        client.request(Pull(BATCH))
        numbers.add(number_of(peer))
        client.close()
    assert len(numbers) == 3


def test_nothing_is_sent_to_a_dead_peer_and_its_silence_does_not_count(
    context: Context, client: Client, peer: Peer, clock: Clock
) -> None:
    heard: list[Message] = []
    client.request(WaitCredit(0, 5), on_reply=heard.append)
    number = number_of(peer)
    client.pause()
    client.request(WaitCredit(0, 6), on_reply=heard.append)
    clock.now += 1000.0
    client.tick()
    assert client.due == float("inf")
    assert peer.take() is None

    second = Peer(context, "inproc://second")
    with closing(second.socket):
        client.reconnect("inproc://second")
        sent = [second.take(), second.take()]
        assert [each and each[0] for each in sent] == [number, number + 1]  # at once, under their numbers
        wait_out(client, clock, 29.0)  # silence counts from now on
        second.say(number, Credit(6))
        client.receive()
        assert heard == [Credit(6)]
        with pytest.raises(WireError, match="embedding-server-1 at inproc://second has not answered for 30 s"):
            wait_out(client, clock, 40.0)
