"""Client and server on separate threads, over every transport."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from persia_cli.wire.addresses import ipc_address
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId, Message, TableTotals
from persia_cli.wire.messages import Ack, Credit, GroupKeys, LookedUp, LookedUpRows, LookUp, Update, WaitCredit
from persia_cli.wire.server import Peer, Server
from persia_cli.wire.shared_memory import DATA_START, share_memory
from persia_cli.wire.sockets import Context
from tests.support.serving import poll_until, serving

DIM = 16
NONE_UNKNOWN = np.empty(0, np.uint32)


def found(watermark: int, *rows: np.ndarray) -> LookedUp:
    return LookedUp(watermark, TableTotals(), [LookedUpRows(each, NONE_UNKNOWN) for each in rows])


def look_up(server: Server) -> None:
    """Answer each key with a row full of it."""

    def answer(peer: Peer, message: LookUp) -> None:
        rows = [np.repeat(group.keys.astype(np.float32)[:, None], DIM, axis=1) for group in message.groups]
        server.reply(peer, found(message.batch.step, *[values.view(np.uint8) for values in rows]))

    server.on(LookUp, answer)


@pytest.mark.parametrize("rows", [10, 50_000])
def test_every_request_gets_its_own_answer(context: Context, address: str, rows: int) -> None:
    """50,000 rows are sent without copying, few are copied."""
    with serving(context, address, look_up) as server:
        loop = Loop(context, "asker")
        client = loop.connect(server.address, "server", b"asker#1", 0.5, 30.0)
        answers: dict[int, LookedUp] = {}

        for step in range(20):
            keys = np.arange(step, step + rows, dtype=np.uint64)
            groups = [GroupKeys(each, np.zeros(len(each), np.uint16)) for each in (keys, keys[:5])]
            client.request(LookUp(BatchId(0, step, 0), True, (), groups), on_reply=partial(answers.__setitem__, step))
        poll_until(loop, lambda: not client.pending)
        loop.close()
    assert server.refused == client.malformed == 0
    for step in range(20):
        blocks = [group.rows for group in answers[step].groups]
        assert [block.shape for block in blocks] == [(rows, 4 * DIM), (min(rows, 5), 4 * DIM)]
        assert np.array_equal(blocks[0].view(np.float32)[:, DIM - 1], np.arange(step, step + rows, dtype=np.float32))


def test_a_parked_request_survives_many_repeats(context: Context) -> None:
    """The first client waits, with Pending as its answer, until the second has sent its request."""
    parked: list[Peer] = []

    def credit(server: Server) -> None:
        def answer(peer: Peer, message: WaitCredit) -> None:
            if message.step:
                parked.append(peer)
                return
            server.reply(peer, Ack())
            for waiting in parked:
                server.reply(waiting, Credit(6))

        server.on(WaitCredit, answer)
        server.on(Update, lambda peer, message: server.reply(peer, Ack()))

    with serving(context, "tcp://127.0.0.1:0", credit) as server:
        loop = Loop(context, "askers")
        first = loop.connect(server.address, "server", b"first#1", retry_s=0.01, silence_timeout_s=0.4)
        heard: list[Message] = []
        first.request(WaitCredit(0, 5), on_reply=lambda reply: heard.append(reply))
        poll_until(loop, lambda: server.repeated >= 10)
        assert heard == []
        assert len(parked) == 1
        second = loop.connect(server.address, "server", b"second#1", 0.5, 30.0)
        second.request(WaitCredit(0, 0))
        poll_until(loop, lambda: not first.pending)
        loop.close()
    assert heard == [Credit(6)]
    assert len(parked) == 1


def test_a_server_that_comes_back_is_found_again(context: Context, ipc_directory: Path) -> None:
    loop = Loop(context, "asker")
    client = loop.connect(ipc_address(ipc_directory, "s"), "server", b"asker#1", 0.05, 30.0)
    batch = BatchId(0, 7, 0)
    groups = [GroupKeys(np.arange(3, dtype=np.uint64), np.zeros(3, np.uint16))]
    heard: list[LookedUp] = []
    for life in range(1, 3):
        client.request(LookUp(batch, True, (), groups), on_reply=heard.append)
        with serving(context, ipc_address(ipc_directory, "s"), look_up):
            poll_until(loop, lambda: not client.pending)
        assert [reply.watermark for reply in heard] == [7] * life
    loop.close()


@pytest.mark.parametrize("nbytes", [DATA_START + (1 << 16), 1 << 27], ids=["too small", "enough"])
def test_large_arrays_pass_in_shared_memory(context: Context, ipc_directory: Path, nbytes: int) -> None:
    """Keys are in shared memory or not; rows are made in it, or sent where it is full."""
    own, theirs = share_memory(nbytes), share_memory(nbytes)
    assert own is not None
    assert theirs is not None

    def rows_of(server: Server) -> None:
        def answer(peer: Peer, message: LookUp) -> None:
            keys = message.groups[0].keys
            rows = theirs.empty((len(keys), 8), np.uint8)
            rows[...] = keys.view(np.uint8).reshape(-1, 8)
            server.reply(peer, found(message.batch.step, rows))

        server.on(LookUp, answer)

    answered: dict[int, list[int]] = {}
    with serving(context, ipc_address(ipc_directory, "s"), rows_of, theirs) as server:
        loop = Loop(context, "asker")
        loop.share(own)
        client = loop.connect(server.address, "server", b"asker#1", 0.5, 30.0)

        def keep(reply: LookedUp) -> None:
            answered[reply.watermark] = reply.groups[0].rows.view(np.uint64).reshape(-1).tolist()

        for step in range(60):
            sent = own.empty((100 + step * 40,), np.uint64) if step % 2 else np.empty(100 + step * 40, np.uint64)
            sent[...] = np.arange(step, step + len(sent))
            group = GroupKeys(sent, np.zeros(len(sent), np.uint16))
            client.request(LookUp(BatchId(0, step, 0), True, (), [group]), on_reply=keep)
            del sent, group
            poll_until(loop, lambda: client.pending < 4)
        poll_until(loop, lambda: not client.pending and own.lent == 0)
        assert loop.counters["no_room"] == 0 if nbytes > 1 << 20 else own.no_room + theirs.no_room > 0
        loop.close()
    assert answered == {step: list(range(step, step + 100 + step * 40)) for step in range(60)}
    assert theirs.lent == 0
    assert server.refused == client.malformed == 0
