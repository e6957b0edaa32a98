"""The bytes of every message, as they have been since this version of the protocol."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from persia_cli.wire.frames import BY_KIND, decode, encode
from persia_cli.wire.job_messages import (
    Beat,
    Change,
    CutShort,
    Death,
    Done,
    EvaluateSteps,
    Fail,
    Heartbeat,
    Held,
    Hello,
    Hold,
    Instruction,
    Item,
    Leave,
    Next,
    Pause,
    PhaseWork,
    PredictSteps,
    Ready,
    Recorded,
    Report,
    Saved,
    SavedNow,
    SaveModel,
    SaveNow,
    ScoreCounts,
    ScoredSamples,
    Scores,
    Stop,
    StoreCall,
    StoreValue,
    TakeItem,
    TrainSteps,
    Verdict,
    Welcome,
)
from persia_cli.wire.message import BatchId, Message, ProcessId, Sender, TableTotals
from persia_cli.wire.messages import (
    PROTOCOL,
    Ack,
    Credit,
    GroupGradients,
    GroupKeys,
    GroupRows,
    LookedUp,
    LookedUpRows,
    LookUp,
    Pending,
    Pull,
    PullWeights,
    PushGradients,
    PutIds,
    PutSamples,
    ReadRows,
    Refused,
    Rows,
    Update,
    WaitCredit,
)
from persia_cli.wire.reports import Counters, IntervalMetrics, ReplicaUsage, SavedFile
from tests.support.any_message import same

REQUEST = 258
TOKEN = bytes(range(0xA0, 0xB0))
FILE = Path(__file__).parent / "message_bytes.json"
"""Written by `python -m scripts.message_bytes`."""
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))

BATCH = BatchId(split=0, step=1000, rank=2)
PROCESS = ProcessId(pid=4321, began=987654, place="0f" * 8)
SENDER = Sender(role="nn-worker", index=2, incarnation=3)
KEYS = GroupKeys(np.array([1, 2**64 - 1], np.uint64), np.array([0, 65534], np.uint16))
LABELS = np.array([[1], [0]], np.float32)
FLOATS = np.array([[0.5, -1.0, 2.0]] * 2, np.float32)
ROWS = FLOATS.view(np.uint8)

USED = ReplicaUsage(1.25, 2**30, {"resent": 1}, {"nn-worker": {"wire": 7}}, Counters(counts={"a": 2}))
SAMPLES: list[Message] = [
    Ack(),
    Pending(),
    Refused("no"),
    PutIds(BATCH, 990, np.array([7, 2**63], np.uint64), np.array([0, 1, 2], np.uint32)),
    PutSamples(BATCH, np.array([8.0]), FLOATS, LABELS, None, KEYS.keys, None),
    WaitCredit(split=1, step=9),
    Credit(limit=12, finished=2),
    Pull(BATCH, dense_rows=354),
    PullWeights(BATCH, dense_rows=354),
    ReadRows(BATCH, 2, np.array([7, 2**63], np.uint64), np.array([0, 1, 2], np.uint32)),
    Rows(2, (TableTotals(900, 5, 70, 30), TableTotals(1, 0, 2, 1)), 40, 3, [
        GroupRows([ROWS, ROWS[:0]], np.array([0, 1], np.int32), None),
        GroupRows([ROWS], np.array([1], np.int32), np.array([0, 0, 1], np.uint32)),
    ]),
    PushGradients(BATCH, 0, [ROWS, ROWS[:1, :8]]),
    LookUp(BATCH, True, [KEYS]),
    LookedUp(-1, TableTotals(900, 5, 70, 30), [LookedUpRows(ROWS, np.array([1], np.uint32))]),
    Update(BATCH, 0, [GroupGradients(*KEYS, ROWS)]),
    Hello("nn-worker", 2, PROCESS, "host", "0.1.0", PROTOCOL, "tcp://127.0.0.1:5000"),
    Welcome(3, b"{}", b"[]", {"nn-worker": ["tcp://127.0.0.1:5000"]}),
    Ready(SENDER, 5000, 0),
    Next(SENDER, after=4),
    Instruction(5, TrainSteps(0, 100)),
    Held(SENDER, 6, step=73),
    Done(SENDER, 5, None),
    Saved(SENDER, 300, (SavedFile("dense", "dense.safetensors", 9, "0f" * 16),)),
    TakeItem(SENDER, split=0, finished=16),
    Item(first=16, last=32, end=False),
    Report(
        SENDER,
        6,
        IntervalMetrics("eval", 50, samples=2, steps=1, staleness={1: 1}, seconds=0.5, loss_sums=(1.25,)),
        ScoreCounts(np.array([2, 5], np.uint64), np.array([1.0, 0.5]), np.array([[0.5, 1.5]])),
        ScoredSamples(KEYS.keys, LABELS - 2, LABELS, None),
    ),
    Scores(SENDER, BATCH, FLOATS),
    Heartbeat(SENDER, "training step 7", 0.5, USED, 7),
    Beat(True, (Change(8, "embedding-worker", 1, PROCESS, True, "tcp://127.0.0.1:5000"),)),
    Leave("embedding-server", 1, PROCESS, "SIGTERM", serves=True),
    Fail(SENDER, "out of memory", exit_code=1),
    SaveNow(),
    SavedNow("/run/checkpoints/step-9", ""),
    Death("embedding-worker", 1, PROCESS, -9),
    Verdict(True, 2.0, ""),
    StoreCall(SENDER, "compare_set", ("group/rank",), b"new", b"old", 3),
    StoreValue(b"new", 3),
    Recorded(SENDER, b"{}"),
]  # fmt: skip
WORK = [
    TrainSteps(0, 100),
    EvaluateSteps(5, 10),
    PredictSteps(0, 5),
    SaveModel("run/step-9", 9, 6, True),
    Pause(3),
    Hold(1),
    CutShort(1, 7),
    Stop("why", goes_on=True),
]


def frames_of(message: Message) -> list[str]:
    """The frames of a message in hexadecimal."""
    return [bytes(frame).hex() for frame in encode(REQUEST, message, token=TOKEN)]


def test_every_message_has_a_sample() -> None:
    assert {type(message) for message in SAMPLES} == set(BY_KIND.values())
    assert set(GOLDEN) == {kind.__name__ for kind in BY_KIND.values()}


@pytest.mark.parametrize("message", SAMPLES, ids=lambda value: type(value).__name__)
def test_bytes_are_what_they_were(message: Message) -> None:
    """Raise PROTOCOL if a change breaks this on purpose: older replicas no longer understand newer ones."""
    assert frames_of(message) == GOLDEN[type(message).__name__]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda value: type(value).__name__)
def test_the_bytes_of_old_are_understood(message: Message) -> None:
    number, received = decode([bytes.fromhex(frame) for frame in GOLDEN[type(message).__name__]], token=TOKEN)
    assert number == REQUEST
    assert same(received, message)


@pytest.mark.parametrize("work", WORK, ids=lambda value: type(value).__name__)
def test_an_instruction_is_encoded_by_the_name_of_its_phase(work: PhaseWork) -> None:
    _, header = encode(1, Instruction(5, work))
    assert decode(encode(1, Instruction(5, work))) == (1, Instruction(5, work))
    name, *values = msgspec.msgpack.decode(header)[1][1]
    assert name in ("training", "evaluating", "predicting", "saving", "paused", "hold", "cut", "stop")
    assert tuple(values) == msgspec.structs.astuple(work)


def test_a_look_up_is_laid_out_as_described() -> None:
    """Kind and token; msgpack of (request, fields, shapes of arrays by group, no loan); then the arrays."""
    kind, header, keys, tables = (bytes.fromhex(frame) for frame in GOLDEN["LookUp"])
    assert kind == b"\x30" + TOKEN
    batch = b"\x93\x00\xcd\x03\xe8\x02"  # (0, 1000, 2)
    fields = b"\x92" + batch + b"\xc3"  # (batch, True)
    group = b"\x92" + b"\x91\x02" + b"\x91\x02"  # two keys, two tables
    assert header == b"\x94" + b"\xcd\x01\x02" + fields + b"\x91\x91" + group + b"\xc0"
    assert keys == b"\x01" + bytes(7) + b"\xff" * 8
    assert tables == b"\x00\x00\xfe\xff"
