"""Requests through a network that breaks: nothing lost, nothing applied twice."""

import random
from collections import Counter

import numpy as np

from persia_cli.wire.client import Client
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import (
    Ack,
    GroupGradients,
    Update,
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

        server.on(Update, update)


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
