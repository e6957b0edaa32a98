"""Requests through a network that breaks: nothing lost, nothing applied twice."""

import random
import socket
import threading
import time
from collections import Counter

import numpy as np

from persia_cli.wire.client import Client
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId, TableTotals
from persia_cli.wire.messages import (
    Ack,
    Credit,
    GroupGradients,
    GroupKeys,
    LookedUp,
    LookedUpRows,
    LookUp,
    Update,
    WaitCredit,
)
from persia_cli.wire.server import Peer, Server
from persia_cli.wire.sockets import Context
from tests.support.proxy import Proxy
from tests.support.serving import poll_until, serving

TCP = "tcp://127.0.0.1:0"
DIM = 4


class Applied:
    """The core of an embedding server: adds up each batch's gradients once, from any senders and any repeats."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.total = 0.0

    def register(self, server: Server) -> None:
        def update(peer: Peer, message: Update) -> None:
            step = message.batch.step
            if not self.deliveries[step]:
                self.total += float(message.groups[0].gradients.sum(dtype=np.float64))
            self.deliveries[step] += 1
            server.reply(peer, Ack())

        def look_up(peer: Peer, message: LookUp) -> None:
            rows = np.ones((len(message.groups[0].keys), DIM), np.uint8)
            server.reply(peer, LookedUp(0, TableTotals(), [LookedUpRows(rows, np.empty(0, np.uint32))]))

        def credit(peer: Peer, message: WaitCredit) -> None:
            server.reply(peer, Credit(message.step + 1))

        server.on(Update, update)
        server.on(LookUp, look_up)
        server.on(WaitCredit, credit)


def an_update(step: int, rows: int) -> Update:
    gradients = np.full((rows, DIM), step % 7, np.uint8)
    group = GroupGradients(np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint16), gradients)
    return Update(BatchId(0, step, 0), 0, [group])


def test_updates_are_applied_exactly_once_through_random_cuts(context: Context) -> None:
    updates, window, cuts = 3000, 16, 25
    applied, answered = Applied(), Counter[int]()

    def ask(client: Client, step: int, rows: int) -> None:
        client.request(an_update(step, rows), on_reply=lambda _: answered.update([step]))

    chance = random.Random(7)
    cut_at = set(chance.sample(range(updates), cuts))
    rows = chance.choices([0, 3, 300, 6000], k=updates)
    with serving(context, TCP, applied.register) as server, Proxy(server.address) as proxy:
        loop = Loop(context, "embedding-worker-0")
        client = loop.connect(proxy.address, "embedding-server-0", b"embedding-worker-0#1", 0.05, 30.0)
        for step in range(updates):
            ask(client, step, rows[step])
            poll_until(loop, lambda: client.pending < window)
            if step in cut_at:
                proxy.cut()
        poll_until(loop, lambda: not client.pending)
        cuts_made = proxy.cuts
        loop.close()
    assert cuts_made > 0
    assert client.resent > 0
    assert answered == Counter(range(updates))
    assert set(applied.deliveries) == set(range(updates))
    assert applied.total == sum(rows[step] * DIM * (step % 7) for step in range(updates))
    assert server.refused == client.malformed == 0


def test_a_lost_answer_is_sent_again_without_a_second_update(context: Context) -> None:
    applied = Applied()
    with serving(context, TCP, applied.register) as server, Proxy(server.address) as proxy:
        loop = Loop(context, "asker")
        client = loop.connect(proxy.address, "server", b"asker#1", 0.05, 30.0)
        client.request(WaitCredit(0, 1))
        poll_until(loop, lambda: not client.pending)
        proxy.stall(requests=False, replies=True)
        client.request(an_update(5, 10))
        poll_until(loop, lambda: applied.deliveries[5] == 1)
        proxy.cut()
        proxy.resume()
        poll_until(loop, lambda: not client.pending)
        loop.close()
    assert applied.deliveries == {5: 1}
    assert applied.total == 10 * DIM * 5
    assert server.repeated >= 1


def test_repeats_held_up_by_a_stalled_network_do_no_harm(context: Context) -> None:
    applied = Applied()
    with serving(context, TCP, applied.register) as server, Proxy(server.address) as proxy:
        loop = Loop(context, "asker")
        client = loop.connect(proxy.address, "server", b"asker#1", 0.02, 30.0)
        client.request(WaitCredit(0, 1))
        poll_until(loop, lambda: not client.pending)
        proxy.stall()
        client.request(an_update(5, 1000))
        poll_until(loop, lambda: client.resent >= 4)
        assert not applied.deliveries
        proxy.resume()
        poll_until(loop, lambda: client.late >= 4)
        loop.close()
    assert applied.deliveries == {5: 1}
    assert client.pending == 0


def test_a_slow_network_only_takes_longer(context: Context) -> None:
    applied = Applied()
    with serving(context, TCP, applied.register) as server, Proxy(server.address) as proxy:
        proxy.delay(0.02)
        loop = Loop(context, "asker")
        client = loop.connect(proxy.address, "server", b"asker#1", 0.5, 30.0)
        rows: list[int] = []
        start = time.monotonic()
        for step in range(5):
            client.request(
                LookUp(BatchId(0, step, 0), True, [GroupKeys(*an_update(step, 50_000).groups[0][:2])]),
                on_reply=lambda reply: rows.append(len(reply.groups[0].rows)),
            )
        poll_until(loop, lambda: not client.pending)
        loop.close()
    assert time.monotonic() - start >= 0.04
    assert rows == [50_000] * 5


def test_bytes_that_are_no_zeromq_at_all_do_no_harm(context: Context) -> None:
    applied = Applied()
    with serving(context, TCP, applied.register) as server:
        host, port = server.address.removeprefix("tcp://").split(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", random.Random(0).randbytes(10_000), b"\xff\0\0\0\0\0\0\0\1\x7f"):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(garbage)
        loop = Loop(context, "asker")
        client = loop.connect(server.address, "server", b"asker#1", 0.5, 30.0)
        client.request(an_update(5, 10))
        poll_until(loop, lambda: not client.pending)
        loop.close()
    assert applied.deliveries == {5: 1}


def test_the_proxy_leaves_no_thread_and_no_listener(context: Context) -> None:
    applied = Applied()
    with serving(context, TCP, applied.register) as server:
        with Proxy(server.address) as proxy:
            loop = Loop(context, "asker")
            client = loop.connect(proxy.address, "server", b"asker#1", 0.5, 30.0)
            client.request(WaitCredit(0, 1))
            poll_until(loop, lambda: not client.pending)
            proxy.stall()
        loop.close()
        host, port = proxy.address.removeprefix("tcp://").split(":")
        probe = socket.socket()
        assert probe.connect_ex((host, int(port))) != 0
        probe.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "proxy"]
