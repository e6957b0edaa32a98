"""The bytes of every message, as they have been since this version of the protocol."""

import json
from pathlib import Path

import numpy as np
import pytest

from persia_cli.wire.frames import Array, decode, encode
from persia_cli.wire.messages import (
    BY_KIND,
    PROTOCOL,
    Ack,
    Beat,
    Credit,
    Done,
    Fail,
    Heartbeat,
    Hello,
    Instruction,
    Item,
    Leave,
    LookedUp,
    LookUp,
    Next,
    Pending,
    Pull,
    PullWeights,
    PushGradients,
    PutIds,
    PutSamples,
    Ready,
    Refused,
    Report,
    Rows,
    Scores,
    TakeItem,
    Update,
    WaitCredit,
    Welcome,
)
from persia_cli.wire.parts import BatchId, Message, Sender, TableTotals

REQUEST = 258
TOKEN = bytes(range(0xA0, 0xB0))
GOLDEN = json.loads((Path(__file__).parent / "message_bytes.json").read_text(encoding="utf-8"))

BATCH = BatchId(generation=1, split=0, step=1000, rank=2)
SENDER = Sender(role="nn-worker", index=2, incarnation=3)
KEYS, TABLES = np.array([1, 2**64 - 1], np.uint64), np.array([0, 65534], np.uint16)
LABELS = np.array([[1], [0]], np.float32)
FLOATS = np.array([[0.5, -1.0, 2.0]] * 2, np.float32)
ROWS = FLOATS.view(np.uint8)
NO_OFFSETS = np.zeros(0, np.uint32)

SAMPLES: list[tuple[Message, list[Array]]] = [
    (Ack(), []),
    (Pending(), []),
    (Refused("no"), []),
    (PutIds(BATCH), [np.array([7, 2**63], np.uint64), np.array([0, 1, 2], np.uint32)]),
    (PutSamples(BATCH, 8.0), [FLOATS, LABELS, np.zeros(0, np.float32), KEYS]),
    (WaitCredit(split=1, step=9), []),
    (Credit(limit=12), []),
    (Pull(BATCH, dense_rows=354), []),
    (PullWeights(BATCH, dense_rows=354), []),
    (
        Rows(2, (TableTotals(900, 5, 70, 30), TableTotals(1, 0, 2, 1)), ids=40, unknown=3),
        [TABLES.astype(np.int32), NO_OFFSETS, ROWS, ROWS[:0]] * 2,
    ),
    (PushGradients(BATCH), [ROWS, ROWS[:1, :8]]),
    (LookUp(BATCH, create=True), [KEYS, TABLES]),
    (LookedUp(-1, TableTotals(900, 5, 70, 30)), [ROWS, np.array([1], np.uint32)]),
    (Update(BATCH), [KEYS, TABLES, ROWS]),
    (Hello("nn-worker", 2, 4321, "host", "0.1.0", PROTOCOL, "tcp://127.0.0.1:5000"), []),
    (Welcome(3, b"{}", b"[]", {"nn-worker": ["tcp://127.0.0.1:5000"]}), []),
    (Ready(SENDER, 5000, 0), []),
    (Next(SENDER, after=4), []),
    (Instruction(5, "training", {"first": 0, "last": 100}), []),
    (Done(SENDER, 5, {"loss": 0.25}), []),
    (TakeItem(SENDER, split=0), []),
    (Item(first=16, last=32, end=False), []),
    (
        Report(SENDER, 6, {"step": 50}),
        [
            np.array([2, 5], np.uint64),
            np.array([1.0, 0.5]),
            np.array([[0.5, 1.5]]),
            KEYS,
            LABELS - 2,
            LABELS,
            np.zeros(0, np.float32),
        ],
    ),
    (Scores(SENDER, BATCH), [FLOATS]),
    (Heartbeat(SENDER, "training step 7", 0.5, 1.25, 2**30, {}), []),
    (Beat(stop=True), []),
    (Leave("embedding-server", 1, 4321, "SIGTERM"), []),
    (Fail(SENDER, "out of memory", exit_code=1), []),
]


def test_every_message_has_a_sample() -> None:
    assert {type(message) for message, _ in SAMPLES} == set(BY_KIND.values())
    assert set(GOLDEN) == {kind.__name__ for kind in BY_KIND.values()}


@pytest.mark.parametrize(("message", "arrays"), SAMPLES, ids=lambda value: type(value).__name__)
def test_bytes_are_what_they_were(message: Message, arrays: list[Array]) -> None:
    """If this fails on purpose, raise PROTOCOL: older replicas no longer understand newer ones."""
    frames = [bytes(frame).hex() for frame in encode(REQUEST, message, arrays, token=TOKEN)]
    assert frames == GOLDEN[type(message).__name__]


@pytest.mark.parametrize(("message", "arrays"), SAMPLES, ids=lambda value: type(value).__name__)
def test_the_bytes_of_old_are_understood(message: Message, arrays: list[Array]) -> None:
    number, received, received_arrays = decode(
        [bytes.fromhex(frame) for frame in GOLDEN[type(message).__name__]], token=TOKEN
    )
    assert (number, received) == (REQUEST, message)
    assert [(a.dtype, a.tolist()) for a in received_arrays] == [(a.dtype, a.tolist()) for a in arrays]


def test_a_look_up_is_laid_out_as_described() -> None:
    """Kind and token; msgpack of (request, fields, dtype and shape of each array, no loan); then the arrays."""
    kind, header, keys, tables = (bytes.fromhex(frame) for frame in GOLDEN["LookUp"])
    assert kind == b"\x30" + TOKEN
    batch = b"\x94\x01\x00\xcd\x03\xe8\x02"  # (1, 0, 1000, 2)
    fields = b"\x92" + batch + b"\xc3"  # (batch, True)
    heads = b"\x92" + b"\x92\xa3<u8\x91\x02" + b"\x92\xa3<u2\x91\x02"
    assert header == b"\x94" + b"\xcd\x01\x02" + fields + heads + b"\xc0"
    assert keys == b"\x01" + bytes(7) + b"\xff" * 8
    assert tables == b"\x00\x00\xfe\xff"
