"""Arrays that pass between processes in shared memory: unchanged, not copied on the way, given back in time."""

import gc
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from persia_cli.wire import shared_memory as loans
from persia_cli.wire.frames import BY_KIND, MalformedMessage, decode, encode, parts_of
from persia_cli.wire.message import Array, BatchId, Message, TableTotals
from persia_cli.wire.messages import (
    GroupKeys,
    GroupRows,
    LookedUp,
    LookedUpRows,
    LookUp,
    PushGradients,
    PutIds,
    Rows,
)
from persia_cli.wire.shared_memory import CELLS, DATA_START, Loan, SharedMemory, create_segment, share_memory
from tests.support.any_message import messages, nbytes, raw, same

BATCH = BatchId(split=0, step=7, rank=1)
SIZE = DATA_START + (1 << 20)


def memory(nbytes: int = SIZE) -> SharedMemory:
    return SharedMemory(create_segment(nbytes))


def send(sender: SharedMemory, message: Message) -> list[bytes]:
    """The frames of a message that lends its arrays, as a socket carries them."""
    return raw(encode(5, message, sender.lend(parts_of(message).arrays)))


def receive(receiver: SharedMemory, frames: list[bytes]) -> list[Array]:
    return parts_of(decode(frames, receiver)[1]).arrays


def gradients(count: int = 1) -> list[Array]:
    return [np.full((2000, 8), number, np.uint8) for number in range(1, count + 1)]


def words(shared: SharedMemory, count: int) -> Array:
    """Shared memory that is lent without a copy."""
    array = shared.empty((count,), np.uint64)
    array[...] = np.arange(count)
    return array


@pytest.mark.parametrize("kind", BY_KIND.values(), ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data(), least=st.sampled_from([1, 40, loans.MIN_SHARED_BYTES]))
def test_every_message_survives_being_lent(kind: type[Message], data: st.DataObject, least: int) -> None:
    message = data.draw(messages(kind))
    sender, receiver = memory(), memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loans, "MIN_SHARED_BYTES", least)
        frames = send(sender, message)
    assert len(frames) == 2 + sum(size < least for size in nbytes(message))
    number, received = decode(frames, receiver)
    assert number == 5
    assert same(received, message)
    assert all(array.flags.writeable and array.flags.aligned for array in parts_of(received).arrays)


def test_forwarded_arrays_are_lent_in_place_and_given_back() -> None:
    server, worker, trainer = memory(), memory(), memory()
    rows = server.empty((2000, 8), np.uint8)
    rows[...] = 3
    there = receive(worker, send(server, LookedUp(0, TableTotals(), [LookedUpRows(rows, np.empty(0, np.uint32))])))
    inverse = np.arange(5000, dtype=np.int32)
    group = GroupRows([there[0][:1000], there[0][1000:]], inverse, None)
    arrays = receive(trainer, send(worker, Rows(0, (), 0, 0, [group])))
    rows[0] = 9
    assert arrays[0][0].tolist() == [9] * 8
    del there, group
    assert (server.lent, worker.lent) == (1, 1)
    kept = arrays[1][7:9, 2]
    del arrays
    gc.collect()
    assert (server.lent, worker.lent) == (1, 1)
    del kept
    assert worker.lent == 0
    assert server.lent == 0


def test_memory_is_used_again_only_when_the_receiver_has_let_go() -> None:
    sender, receiver = memory(DATA_START + 20_000), memory()
    received = receive(receiver, send(sender, PushGradients(BATCH, 0, gradients())))
    for _ in range(10):
        # No space: the arrays of this message are sent in frames.
        second = receive(receiver, send(sender, PushGradients(BATCH, 0, [np.full((2000, 8), 7, np.uint8)])))
        assert (second[0] == 7).all()
        assert (received[0] == 1).all()
    assert sender.lent == 1
    del received, second
    assert sender.lent == 0
    frames = send(sender, PushGradients(BATCH, 0, gradients()))
    assert len(frames) == 2


def test_a_message_that_comes_twice_is_passed_over_unanswered() -> None:
    sender, receiver = memory(), memory()
    frames = send(sender, PushGradients(BATCH, 0, gradients()))
    held = receive(receiver, frames)
    for _ in range(2):
        with pytest.raises(MalformedMessage, match="arrived before") as caught:
            receive(receiver, frames)
        assert caught.value.request is None
    assert sender.lent == 1
    assert (held[0] == 1).all()
    del held
    assert sender.lent == 0
    with pytest.raises(MalformedMessage, match="arrived before"):
        receive(receiver, frames)
    # Even once the same cell has another loan.
    while True:
        again = send(sender, PushGradients(BATCH, 0, gradients()))
        held = receive(receiver, again)
        if msgspec.msgpack.decode(again[1])[3][1] == msgspec.msgpack.decode(frames[1])[3][1]:
            break
        del held
    with pytest.raises(MalformedMessage, match="arrived before"):
        receive(receiver, frames)
    assert (held[0] == 1).all()


def test_a_sender_cannot_end_loans_of_its_receiver() -> None:
    receiver = memory()
    loan = lent(receiver)
    with pytest.raises(MalformedMessage, match="lends memory that belongs to its receiver"):
        receive(receiver, loan_with(loan))
    assert receiver.lent == 1


def test_loans_of_lost_messages_end_and_others_stay() -> None:
    now = [0.0]
    sender, receiver = SharedMemory(create_segment(SIZE), lambda: now[0]), memory()
    keys = words(sender, 1000)
    held = receive(receiver, send(sender, LookUp(BATCH, True, (), [GroupKeys(keys, np.zeros(1000, np.uint16))])))
    late = send(sender, PushGradients(BATCH, 0, gradients()))
    for _ in range(3 * CELLS):
        now[0] += 2 * loans.LOST_S / CELLS
        assert sender.lend([keys]) is not None
    assert sender.no_room == 0
    now[0] += 2 * loans.LOST_S
    assert [sender.lent for _ in range(2)][1] == 1
    assert held[0].tolist() == keys.tolist()
    with pytest.raises(MalformedMessage, match="arrived before, or late"):
        receive(receiver, late)
    del held
    assert sender.lent == 0


def test_bytes_that_are_not_aligned_for_floats_are_copied() -> None:
    sender, receiver = memory(), memory()
    block = sender.empty((6001,), np.uint8)
    block[...] = np.arange(6001) % 251
    received = receive(receiver, send(sender, PushGradients(BATCH, 0, [block[1:].reshape(-1, 6)])))
    assert received[0].ctypes.data % 4 == 0
    assert np.array_equal(received[0].reshape(-1), block[1:])
    assert sender.lent == 0


def lent(sender: SharedMemory) -> Loan:
    loan = sender.lend(gradients())
    assert loan is not None
    return loan


def loan_with(loan: Loan, **fields: Any) -> list[bytes]:
    """A PushGradients with a loan that no sender makes."""
    changed = msgspec.structs.replace(loan, **fields)
    return [bytes((PushGradients.KIND,)), msgspec.msgpack.encode((5, (BATCH, 0), [[(2000, 8)]], changed))]


def test_loans_of_what_is_not_there_are_refused() -> None:
    sender, receiver = memory(), memory()
    loan = lent(sender)
    elsewhere = f"{os.getpid()}/0/0123456789abcdef"
    for fields, problem in [
        ({"lender": "/etc/passwd"}, "not a valid name of shared memory"),
        ({"lender": elsewhere}, "does not exist any more|cannot reach"),
        ({"serial": loan.serial + 99}, "arrived before"),
        ({"addresses": []}, "declares more arrays than its loan has"),
        ({"addresses": [(loan.lender, DATA_START)] * 2}, "has 1 arrays that it does not declare"),
        ({"addresses": [None]}, "declares more arrays than it has"),
        ({"addresses": [(loan.lender, SIZE - 15_999)]}, "outside the shared memory"),
        ({"addresses": [(loan.lender, 0)]}, "outside the shared memory"),
        ({"addresses": [(elsewhere, DATA_START)]}, "does not exist any more|cannot reach"),
        ({"addresses": [(loan.lender, 2**62)]}, "outside the shared memory"),
    ]:
        with pytest.raises(MalformedMessage, match=problem):
            receive(receiver, loan_with(lent(sender), **fields))
    wrong = [{"cell": CELLS}, {"cell": -1}, {"serial": 0}, {"serial": loans.TAKEN}, {"addresses": [(loan.lender, -1)]}]
    for fields in wrong:
        with pytest.raises(MalformedMessage, match=r"header of \w+ cannot be read"):
            receive(receiver, loan_with(loan, **fields))


@given(header=st.binary(max_size=80))
def test_random_loans_never_raise_anything_else(header: bytes) -> None:
    start = msgspec.msgpack.encode((5, ((0, 7, 1),), [(1,), (2,)]))[1:]
    with pytest.raises(MalformedMessage):
        decode([bytes((PutIds.KIND,)), b"\x94" + start + header], share_memory(SIZE))


def test_without_such_memory_arrays_are_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert share_memory() is None


def test_only_the_loans_of_a_dead_borrower_end() -> None:
    lender, living = memory(), memory()
    dead = memory()
    taken = {}
    for name, borrower in (("dead", dead), ("living", living)):
        arrays = gradients()
        message = PushGradients(BATCH, 0, arrays)
        taken[name] = receive(borrower, raw(encode(5, message, lender.lend(arrays, name))))
    assert lender.lent == 2
    kept = lender.forget({"dead", "dead#1"}, pid=1)
    assert lender.lent == 1
    assert [array.tobytes() for array in kept] == [array.tobytes() for array in gradients()]
    assert lender.forget({"dead"}, pid=1) == []
    np.testing.assert_array_equal(taken["living"][0], gradients()[0])
    del taken["living"]
    gc.collect()
    assert lender.lent == 0


def test_the_memory_of_a_dead_process_is_unmapped() -> None:
    lender, borrower = memory(), memory()
    token = lender.lend(gradients(), "other").lender.rpartition("/")[2]  # type: ignore[union-attr]

    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(token)

    [array] = receive(borrower, send(lender, PushGradients(BATCH, 0, gradients())))
    assert mapped() == 2
    assert borrower.forget(set(), None) == []
    assert borrower.forget(set(), os.getpid() + 1) == []
    assert borrower.forget(set(), os.getpid()) == []
    np.testing.assert_array_equal(array, gradients()[0])  # it stays readable
    assert mapped() == 2
    del array
    assert mapped() == 1
