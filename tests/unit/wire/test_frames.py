"""Messages to frames and back, and refused ones."""

import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from persia_cli.wire.frames import BY_KIND, MAX_FRAMES, MalformedMessage, decode, encode, parts_of
from persia_cli.wire.job_messages import Counters, Heartbeat, IntervalMetrics, ReplicaUsage, Report, ScoreCounts
from persia_cli.wire.message import BatchId, Message, Request, Sender
from persia_cli.wire.messages import (
    Ack,
    GroupKeys,
    GroupRows,
    LookUp,
    PushGradients,
    PutIds,
    PutSamples,
    Refused,
    Rows,
)
from tests.support.any_message import COUNTS, messages, raw, same

BATCH = BatchId(split=0, step=7, rank=1)


def zeros(dtype: str, *shape: int) -> np.ndarray:
    return np.zeros(shape, dtype)


def rows_of(*blocks: np.ndarray) -> Rows:
    return Rows(0, (), 0, 0, [GroupRows(list(blocks), zeros("i4", 3), None)])


def received(frames: list[Any]) -> list[np.ndarray]:
    """The arrays of a received message."""
    return parts_of(decode(frames)[1]).arrays


@pytest.mark.parametrize("kind", BY_KIND.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data(), request_number=COUNTS)
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject, request_number: int) -> None:
    message = data.draw(messages(kind))
    number, received = decode(raw(encode(request_number, message)))
    assert number == request_number
    assert type(received) is kind
    assert same(received, message)


def test_every_message_has_its_own_kind_and_is_documented() -> None:
    assert len(BY_KIND) == len([*Message.__subclasses__(), *Request.__subclasses__()]) - 1
    assert all(0 < kind < 256 for kind in BY_KIND)
    assert all(kind.__doc__ and ("->" in kind.__doc__) for kind in BY_KIND.values())


def test_large_arrays_become_frames_without_a_copy() -> None:
    gradients = np.ones((1000, 64), np.uint8)
    frames = encode(1, PushGradients(BATCH, 0, [gradients]))
    assert np.shares_memory(np.asarray(frames[2]), gradients)


def test_arrays_that_are_not_contiguous_are_sent_in_order() -> None:
    gradients = np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, ::3]
    arrays = received(encode(1, PushGradients(BATCH, 0, [gradients])))
    assert arrays[0].tolist() == [[0, 3], [12, 15]]


@pytest.mark.parametrize("offset", range(8))
def test_received_arrays_are_aligned_and_writable_wherever_the_frame_lies(offset: int) -> None:
    """Kernels are compiled for aligned writable arrays; another kind would be compiled for anew."""
    ids = np.arange(5, dtype=np.uint64)
    kind, header, _, _ = raw(encode(1, PutIds(BATCH, 0, ids, np.zeros(1, np.uint32))))
    memory = bytearray(offset) + bytearray(ids.tobytes())
    arrays = received([kind, header, memoryview(memory)[offset:], bytes(4)])
    assert all(array.flags.aligned and array.flags.writeable and array.flags.c_contiguous for array in arrays)
    assert arrays[0].tolist() == [0, 1, 2, 3, 4]


def test_an_aligned_frame_is_not_copied() -> None:
    frames = encode(1, PushGradients(BATCH, 0, [np.ones((8, 16), np.uint8)]))
    memory = np.frombuffer(bytearray(frames[2]), np.uint8)
    arrays = received([frames[0], frames[1], memory.data])
    assert np.shares_memory(arrays[0], memory)


# Refusals of a sender.


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (PutIds(BATCH, 0, zeros("i8", 3), zeros("u4", 3)), "array 'ids' must be uint64 with 1 dim.* not int64"),
        (PutIds(BATCH, 0, zeros("u8", 3, 1), zeros("u4", 3)), "not uint64 with 2"),
        (
            LookUp(BATCH, True, (), [GroupKeys(zeros("u8", 3), zeros("u2", 4))]),
            "'tables' has size 4 where another has 3",
        ),
        (rows_of(zeros("u1", 1, 4), zeros("u1", 1, 5)), "size 5 where another has 4"),
        (
            PutSamples(BATCH, 0.0, np.array([2.0]), zeros("f4", 2, 3), zeros("f4", 1, 1), None, None, None, None),
            "size 1 where",
        ),
        (PushGradients(BATCH, 0, [zeros("u1", 0, 1)] * (MAX_FRAMES - 1)), "4,097 arrays"),
        (Refused("x" * Refused.LIMIT.header), "a header of 65,5.. bytes"),
        (
            PushGradients(BATCH, 0, [np.broadcast_to(np.uint8(0), (2**15, 2**15))] * 2),
            "arrays of 2,147,483,648 bytes; .*use a smaller train.batch_size",
        ),
    ],
)
def test_arrays_that_do_not_fit_raise_at_the_sender(message: Message, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        encode(1, message)


# Refusals of a receiver.


def put_ids(shapes: Any, request: Any = 1, fields: Any = ((0, 7, 1), 0), loan: Any = None) -> list[bytes]:
    """A PutIds with any header, and the frames of 3 ids and 4 offsets."""
    return [bytes((PutIds.KIND,)), msgspec.msgpack.encode((request, fields, shapes, loan)), bytes(24), bytes(16)]


def heartbeat(counts: bytes) -> list[bytes]:
    """A heartbeat with any bytes in the place of its `counts`."""
    figures = b"\x94\xcb" + bytes(8) + b"\x00\x80" + b"\x93\x80\x80" + counts
    fields = b"\x94" + b"\x93\xa1r\x00\x00" + b"\xa0" + b"\xcb" + bytes(8) + figures
    return [bytes((Heartbeat.KIND,)), b"\x94\x01" + fields + b"\x90\xc0"]


SHAPES = [(3,), (4,)]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\x10"],
        [b"\x10\x10", b""],
        [b"\xff", msgspec.msgpack.encode((1, (), (), None))],
        [b"\x01", b"\x94\x01\x90\x90\xc0x"],
        [b"\x01", b"\x94\x01\x90\xdd\xff\xff\xff\xff"],
        [b"\x01", b"\x00" * (Ack.LIMIT.header + 1)],
        [b"\x01", b"\x94\x01\x90\x90\xc0", *[b""] * (MAX_FRAMES - 1)],
        heartbeat(b"\x81\xa1a" + b"\x91" * 100_000),
        heartbeat(b"\x81\xa2\xff\xfe\x01"),
        heartbeat(b"\xdf\x7f\xff\xff\xff"),
        put_ids(SHAPES)[:2],
        put_ids(SHAPES)[:3],
        put_ids(SHAPES, request=-1),
        put_ids(SHAPES, fields=((0, 7), 0)),
        put_ids(SHAPES, fields=((2, 7, 1), 0)),
        put_ids(SHAPES, fields=((0, 2**63, 1), 0)),
        put_ids([(3,)]),
        put_ids([(4,), (4,)]),
        put_ids([(-3,), (4,)]),
        put_ids([(2**61 + 3,), (4,)]),
        put_ids([(3, 1), (4,)]),
        put_ids([3, (4,)]),
        put_ids(SHAPES, loan=("1/2/0123456789abcdef", 0, 1, [None, None])),
        [bytes((LookUp.KIND,)), msgspec.msgpack.encode((1, ((0, 0, 0), True), [[[(2,)]]], None)), bytes(16)],
        [
            bytes((LookUp.KIND,)),
            msgspec.msgpack.encode((1, ((0, 0, 0), True), [[[(2,), (1,)]]], None)),
            *[bytes(16), bytes(2)],
        ],
        [bytes((PushGradients.KIND,)), msgspec.msgpack.encode((1, ((0, 0, 0), 0), [[(0, 2**62)]], None)), b""],
        [
            bytes((PushGradients.KIND,)),
            msgspec.msgpack.encode((1, ((0, 0, 0), 0), [[(2**32, 2**32)]], None)),
            bytes(0),
        ],
    ],
)
def test_garbage_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode(frames)


SENDER = Sender("nn-worker", 0, 1)
INTERVAL = IntervalMetrics("train", 1, samples=1, steps=1, staleness={1: 1}, seconds=1.0, loss_sums=(0.0,))


def report(**changed: Any) -> Report:
    scores = ScoreCounts(zeros("u8", 0), zeros("f8", 0), zeros("f8", 1, 7))
    return Report(SENDER, 1, replace(INTERVAL, **changed), scores, None)


def beat(**changed: Any) -> Heartbeat:
    return Heartbeat(SENDER, "", 0.0, replace(ReplicaUsage(1.0, 10), **changed))


@pytest.mark.parametrize(
    "wrong",
    [
        report(split="test"),
        report(samples=1.5),
        report(staleness=None),
        report(staleness={1: -4}),
        beat(rss=-1),
        beat(cpu_s=None),
        beat(counters=Counters(tables={"a": {"rows": "1"}})),
    ],
)
def test_values_out_of_their_type_or_range_are_refused(wrong: Message) -> None:
    with pytest.raises(MalformedMessage, match=f"the header of {type(wrong).__name__}") as caught:
        decode(raw(encode(1, wrong)))
    assert caught.value.request == 1


def test_a_refusal_has_the_request_number_if_it_is_legible() -> None:
    with pytest.raises(MalformedMessage, match="the header of PutIds cannot be read") as caught:
        decode(put_ids(SHAPES, request=12, fields=()))
    assert caught.value.request == 12
    with pytest.raises(MalformedMessage, match="0xfe is not a known kind of message") as caught:
        decode([b"\xfe", *put_ids(SHAPES, request=13)[1:]])
    assert caught.value.request == 13
    with pytest.raises(MalformedMessage, match="has 5 bytes") as caught:
        decode([*put_ids(SHAPES, request=14)[:3], b"short"])
    assert caught.value.request == 14


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_random_frames_never_raise_anything_else(frames: list[bytes]) -> None:
    try:
        decode(frames)
    except MalformedMessage:
        return
    assert frames[0] in (b"\x01", b"\x02")  # all other messages are too long to be hit by chance


@pytest.mark.parametrize("kind", BY_KIND.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_damaged_messages_are_refused_or_still_consistent(kind: type[Message], data: st.DataObject) -> None:
    frames = raw(encode(1, data.draw(messages(kind))))
    at = data.draw(st.integers(0, len(frames) - 1))
    damage = data.draw(st.sampled_from(["flip", "truncate", "extend", "drop", "repeat"]))
    frame = frames[at]
    if damage == "flip" and frame:
        place = data.draw(st.integers(0, len(frame) - 1))
        frame = frame[:place] + struct.pack("B", data.draw(st.integers(0, 255))) + frame[place + 1 :]
    elif damage == "truncate":
        frame = frame[: len(frame) // 2]
    elif damage == "extend":
        frame += data.draw(st.binary(min_size=1, max_size=9))
    frames[at : at + 1] = {"drop": [], "repeat": [frame, frame]}.get(damage, [frame])
    try:
        number, message = decode(frames)
    except MalformedMessage:
        return
    again = encode(number, message)
    assert raw(again)[2:] == frames[2:]


def test_every_kind_of_message_has_a_size_limit() -> None:
    for kind in BY_KIND.values():
        endless = b"\xc1" * (kind.LIMIT.header + 1)  # no msgpack: were it decoded, the error would be another
        with pytest.raises(MalformedMessage, match="the limits are"):
            decode([bytes((kind.KIND,)), endless])
    assert Heartbeat.LIMIT.header <= 1 << 20
    with pytest.raises(MalformedMessage, match="0 arrays and 0 bytes"):
        decode([bytes((Heartbeat.KIND,)), b"\x90", bytes(8)])
