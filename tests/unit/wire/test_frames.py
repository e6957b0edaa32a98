"""Messages to frames and back, and what is refused."""

import struct
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings

from persia_cli.wire.frames import MAX_FRAMES, ForeignMessage, MalformedMessage, decode, encode
from persia_cli.wire.limits import LIMITS
from persia_cli.wire.messages import (
    BY_KIND,
    Ack,
    Done,
    Heartbeat,
    LookedUp,
    LookUp,
    Pull,
    PushGradients,
    PutIds,
    PutSamples,
    Refused,
    Rows,
    Update,
)
from persia_cli.wire.parts import BatchId, Message, Request
from tests.support.any_message import COUNTS, messages, raw, same

BATCH = BatchId(generation=0, split=0, step=7, rank=1)


@pytest.mark.parametrize("kind", BY_KIND.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(data=st.data(), request_number=COUNTS)
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject, request_number: int) -> None:
    message, arrays = data.draw(messages(kind))
    number, received, received_arrays = decode(raw(encode(request_number, message, arrays)))
    assert number == request_number
    assert received == message
    assert type(received) is kind
    assert same(received_arrays, arrays)


def test_every_message_has_its_own_kind_and_is_documented() -> None:
    assert len(BY_KIND) == len([*Message.__subclasses__(), *Request.__subclasses__()]) - 1
    assert all(0 < kind < 256 for kind in BY_KIND)
    assert all(kind.__doc__ and ("->" in kind.__doc__) for kind in BY_KIND.values())


def test_large_arrays_become_frames_without_a_copy() -> None:
    gradients = np.ones((1000, 64), np.uint8)
    frames = encode(1, PushGradients(BATCH), [gradients])
    assert np.shares_memory(np.asarray(frames[2]), gradients)


def test_arrays_that_are_not_contiguous_are_sent_in_order() -> None:
    gradients = np.arange(24, dtype=np.uint8).reshape(4, 6)[::2, ::3]
    _, _, arrays = decode(encode(1, PushGradients(BATCH), [gradients]))
    assert arrays[0].tolist() == [[0, 3], [12, 15]]


@pytest.mark.parametrize("offset", range(8))
def test_received_arrays_are_aligned_and_writable_wherever_the_frame_lies(offset: int) -> None:
    """Kernels are compiled for aligned writable arrays; another kind would be compiled for anew."""
    ids = np.arange(5, dtype=np.uint64)
    kind, header, _, _ = raw(encode(1, PutIds(BATCH), [ids, np.zeros(1, np.uint32)]))
    memory = bytearray(offset) + bytearray(ids.tobytes())
    _, _, arrays = decode([kind, header, memoryview(memory)[offset:], bytes(4)])
    assert all(array.flags.aligned and array.flags.writeable and array.flags.c_contiguous for array in arrays)
    assert arrays[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("offset", range(8))
def test_received_rows_can_be_read_as_float32_wherever_the_frame_lies(offset: int) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    kind, header, frame, *rest = raw(encode(1, LookedUp(0), [rows.view(np.uint8), zeros("u4", 0)]))
    memory = bytearray(offset) + bytearray(frame)
    _, _, arrays = decode([kind, header, memoryview(memory)[offset:], *rest])
    read = arrays[0].view(np.float32)
    assert read.flags.aligned
    assert read.tolist() == rows.tolist()


def test_an_aligned_frame_is_not_copied() -> None:
    frames = encode(1, PushGradients(BATCH), [np.ones((8, 16), np.uint8)])
    memory = np.frombuffer(bytearray(frames[2]), np.uint8)
    _, _, arrays = decode([frames[0], frames[1], memory.data])
    assert np.shares_memory(arrays[0], memory)


def test_frames_of_zeromq_are_decoded() -> None:
    frames = [zmq.Frame(frame) for frame in raw(encode(3, LookedUp(-1), [np.ones((2, 3), np.uint8), zeros("u4", 0)]))]
    number, message, arrays = decode(frames)
    assert (number, message) == (3, LookedUp(-1))
    assert arrays[0].tolist() == [[1] * 3] * 2


def test_groups_follow_each_other_with_sizes_of_their_own() -> None:
    def group(rows: tuple[int, int], dim: int) -> list[np.ndarray]:
        blocks = [np.ones((n, 4 * dim), np.uint8) for n in rows]
        return [np.zeros(9, np.int32), np.zeros(0, np.uint32), *blocks]

    arrays = group((2, 0), 4) + group((0, 5), 8)
    _, message, received = decode(encode(1, Rows(staleness=1), arrays))
    assert message == Rows(1)
    assert same(received, arrays)


# What a sender may not send.


def zeros(dtype: str, *shape: int) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("message", "arrays", "problem"),
    [
        (PutIds(BATCH), [], "does not have its array 'ids'"),
        (PutIds(BATCH), [zeros("u8", 3)], "does not have its array 'offsets'"),
        (PutIds(BATCH), [zeros("i8", 3), zeros("u4", 3)], "'ids' of PutIds must be <u8 with 1 dimensions, not <i8"),
        (PutIds(BATCH), [zeros("u8", 3, 1), zeros("u4", 3)], "not <u8 with 2"),
        (PutIds(BATCH), [zeros("u8", 3), zeros("u4", 3), zeros("u4", 3)], "has 1 arrays too many"),
        (Pull(BATCH), [zeros("u8", 3)], "1 arrays of 24 bytes; the limits are 1,024 bytes, 0 arrays"),
        (LookUp(BATCH, create=True), [zeros("u8", 3), zeros("u2", 4)], "has size 4 where another has 3"),
        (
            LookUp(BATCH, create=True),
            [zeros("u8", 3), zeros("u2", 3), zeros("u8", 1)],
            "does not have its array 'tables'",
        ),
        (Update(BATCH), [zeros("u8", 3), zeros("u2", 3), zeros("u1", 2, 8)], "has size 2 where another has 3"),
        (Rows(0), [zeros("i4", 3), zeros("u4", 0)], "does not have its array 'rows'"),
        (Rows(0), [zeros("i4", 3), zeros("u4", 0), zeros("u1", 1, 4), zeros("u1", 1, 5)], "size 5 where"),
        (
            PutSamples(BATCH, 2.0),
            [zeros("f4", 2, 3), zeros("f4", 1, 1), zeros("f4", 0), zeros("u8", 0)],
            "size 1 where",
        ),
        (PushGradients(BATCH), [zeros("u1", 0, 1)] * (MAX_FRAMES - 1), "4,097 arrays of 0 bytes; the limits are"),
        (Refused("x" * LIMITS[Refused].header), [], "a header of 65,5.. bytes"),
        (
            PushGradients(BATCH),
            [np.broadcast_to(np.uint8(0), (2**15, 2**15))] * 2,
            "arrays of 2,147,483,648 bytes; .*use a smaller train.batch_size",
        ),
    ],
)
def test_the_sender_is_told_of_arrays_that_do_not_fit(message: Message, arrays: list[Any], problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        encode(1, message, arrays)


# What a receiver refuses.


def put_ids(heads: Any, request: Any = 1, fields: Any = ((0, 0, 7, 1),), loan: Any = None) -> list[bytes]:
    """A PutIds with any header, and the frames of 3 ids and 4 offsets."""
    return [bytes((PutIds.KIND,)), msgspec.msgpack.encode((request, fields, heads, loan)), bytes(24), bytes(16)]


GOOD_HEADS = [("<u8", (3,)), ("<u4", (4,))]
DONE_BODY = b"\x94\x01\x93\x93\xa1r\x00\x00\x05\x81\xa1a"  # header of Done up to the value in {"a": value}


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"\x10"],
        [b"", b""],
        [b"\x10\x10", b""],
        [b"\xff", msgspec.msgpack.encode((1, (), (), None))],
        [b"\x10", b""],
        [b"\x01", b"\x94\x01\x90\x90\xc0x"],
        [b"\x01", b"\x94\x01\x90\xdd\xff\xff\xff\xff"],
        [b"\x01", b"\x00" * (LIMITS[Ack].header + 1)],
        [b"\x01", b"\x94\x01\x90\x90\xc0", *[b""] * (MAX_FRAMES - 1)],
        [bytes((Done.KIND,)), DONE_BODY + b"\x91" * 100_000 + b"\x90\xc0"],
        [bytes((Done.KIND,)), DONE_BODY + b"\xa2\xff\xfe\x90\xc0"],
        [bytes((Done.KIND,)), DONE_BODY + b"\xdf\x7f\xff\xff\xff\x90\xc0"],
        put_ids(GOOD_HEADS)[:2],
        put_ids(GOOD_HEADS)[:3],
        [*put_ids(GOOD_HEADS), b""],
        put_ids(GOOD_HEADS, request=-1),
        put_ids(GOOD_HEADS, request="1"),
        put_ids(GOOD_HEADS, fields=()),
        put_ids(GOOD_HEADS, fields=((0, 0, 7),)),
        put_ids(GOOD_HEADS, fields=((0, 0, 7, 1), 1)),
        put_ids(GOOD_HEADS, fields=((0, 2, 7, 1),)),
        put_ids(GOOD_HEADS, fields=((0, 0, -7, 1),)),
        put_ids(GOOD_HEADS, fields=((0, 0, 2**63, 1),)),
        put_ids([("<u8", (3,))]),
        put_ids([("<u8", (3,)), ("<f4", (4,))]),
        put_ids([("|O", (3,)), ("<u4", (4,))]),
        put_ids([(">u8", (3,)), ("<u4", (4,))]),
        put_ids([("<u8", (4,)), ("<u4", (4,))]),
        put_ids([("<u8", (2,)), ("<u4", (4,))]),
        put_ids([("<u8", (-3,)), ("<u4", (4,))]),
        put_ids([("<u8", (3.0,)), ("<u4", (4,))]),
        put_ids([("<u8", (2**61 + 3,)), ("<u4", (4,))]),
        put_ids([("<u8", (2**64 - 1,)), ("<u4", (4,))]),
        put_ids([("<u8", (3, 1)), ("<u4", (4,))]),
        put_ids([("<u8", ()), ("<u4", (4,))]),
        put_ids([("<u8",), ("<u4", (4,))]),
        put_ids({"ids": "<u8"}),
        put_ids(GOOD_HEADS, loan=()),
        put_ids(GOOD_HEADS, loan=("1/2/0123456789abcdef", 0, 1, [None, None])),
        [bytes((PushGradients.KIND,)), msgspec.msgpack.encode((1, ((0, 0, 0, 0),), [("|u1", (0, 2**62))], None)), b""],
        [
            bytes((PushGradients.KIND,)),
            msgspec.msgpack.encode((1, ((0, 0, 0, 0),), [("|u1", (2**32, 2**32))], None)),
            bytes(0),
        ],
    ],
)
def test_garbage_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode(frames)


def test_a_legible_request_number_is_told_with_the_refusal() -> None:
    with pytest.raises(MalformedMessage, match="the header of PutIds cannot be read") as caught:
        decode(put_ids(GOOD_HEADS, request=12, fields=()))
    assert caught.value.request == 12
    with pytest.raises(MalformedMessage, match="0xfe is not a known kind of message") as caught:
        decode([b"\xfe", *put_ids(GOOD_HEADS, request=13)[1:]])
    assert caught.value.request == 13
    with pytest.raises(MalformedMessage, match="has 5 bytes") as caught:
        decode([*put_ids(GOOD_HEADS, request=14)[:3], b"short"])
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
    message, arrays = data.draw(messages(kind))
    frames = raw(encode(1, message, arrays))
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
        number, received, received_arrays = decode(frames)
    except MalformedMessage:
        return
    again = encode(number, received, received_arrays)
    assert raw(again)[2:] == frames[2:]


def test_an_ack_is_small() -> None:
    assert sum(len(frame) for frame in raw(encode(2**48, Ack()))) <= 16


TOKEN = bytes(range(16))


@pytest.mark.parametrize("token", [b"", TOKEN[:-1], TOKEN + b"x", bytes(16), TOKEN[::-1]])
def test_without_the_token_of_the_job_nothing_is_decoded(token: bytes) -> None:
    frames = encode(7, Pull(BATCH), token=token)
    with pytest.raises(ForeignMessage, match="does not have the token") as caught:
        decode(frames, token=TOKEN)
    assert caught.value.request is None
    assert decode(encode(7, Pull(BATCH), token=TOKEN), token=TOKEN)[:2] == (7, Pull(BATCH))


def test_every_kind_of_message_has_a_limit_and_small_ones_are_refused_before_they_are_decoded() -> None:
    assert set(LIMITS) == set(BY_KIND.values())
    for kind, limit in LIMITS.items():
        endless = b"\xc1" * (limit.header + 1)  # no msgpack: were it decoded, the error would be another
        with pytest.raises(MalformedMessage, match="the limits are"):
            decode([bytes((kind.KIND,)), endless])
    assert LIMITS[Heartbeat].header <= 1 << 20
    with pytest.raises(MalformedMessage, match="0 arrays and 0 bytes"):
        decode([bytes((Heartbeat.KIND,)), b"\x90", bytes(8)])
