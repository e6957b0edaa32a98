"""Embedding servers and workers recognise a repeat by its batch, from any sender and under any number.

The wire gives a repeat of the same request the same answer, so it would hide a role that does not recognise one. Here
each repeat has another number, or another sender, and reaches the role.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.store.batch_rows import RowPlanner
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import (
    Ack,
    GroupGradients,
    GroupKeys,
    LookedUp,
    LookUp,
    Pull,
    PushGradients,
    PutIds,
    Refused,
    Update,
)
from tests.support.alone import Alone, LoneLink, alone
from tests.support.runs import make_run
from tests.support.stranger import Stranger

DIM, RATE, SIZE = 5, 0.1, 8
MODES = ["hybrid", "sync"]
KEYS, TABLES = np.arange(3, dtype=np.uint64), np.zeros(3, np.uint16)
GRADIENTS = encode_rows(np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM), "float32")
IDS, OFFSETS = np.arange(SIZE, dtype=np.uint64), np.arange(SIZE + 1, dtype=np.uint32)


def run_of(mode: str, ranks: int = 1, servers: int = 1) -> Run:
    return make_run(
        sparse=["a"],
        model={"kind": "ffnn", "dim": DIM, "hidden": [4]},
        embedding={"capacity": 1000},
        mode={"kind": mode},
        cluster={"kind": "local", "embedding_servers": servers, "nn_workers": ranks},
        train={"batch_size": SIZE * ranks},
    )


def job_of(ranks: int = 1) -> Job:
    return Job("train", "", None, train_rows=10 * SIZE * ranks, eval_rows=SIZE * ranks, steps=10, eval_steps=1)


def updates_of(link: LoneLink) -> dict[str, int]:
    """The updates that a server applied, and those that it recognised as repeats."""
    updates = link.counters().updates
    return {count: updates[count] for count in ("applied", "repeated")}


def rows_at(stranger: Stranger, batch: BatchId) -> np.ndarray:
    """Look up the three keys at a server."""
    [group] = stranger.ask_for(LookUp(batch, True, (), [GroupKeys(KEYS, TABLES)])).groups
    return decode_rows(group.rows, DIM, "float32")


def update(batch: BatchId) -> Update:
    return Update(batch, 0, [GroupGradients(KEYS, TABLES, GRADIENTS)])


def put_ids(batch: BatchId) -> PutIds:
    return PutIds(batch, 0, IDS, OFFSETS)


def push(batch: BatchId) -> PushGradients:
    ones = encode_rows(np.ones((SIZE, DIM), np.float32), "float32")
    return PushGradients(batch, 0, [ones] if batch.split == TRAIN else [])


def two_strangers(stack: ExitStack, address: str, roles: Alone) -> list[Stranger]:
    """Two clients of a replica, as one would be before and after it lost its connection for good."""
    return [stack.enter_context(Stranger(address, roles.token, name)) for name in ("first", "second")]


@pytest.mark.parametrize("mode", MODES)
def test_a_server_applies_an_update_once_from_any_senders(mode: str) -> None:
    batch, later = BatchId(TRAIN, 0, 0), BatchId(TRAIN, 1, 0)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of(mode), job_of()))
        first, second = two_strangers(stack, roles.servers[0], roles)
        before = rows_at(first, batch)
        for sender in (first, first, second, second):
            assert sender.ask(update(batch)) == Ack()
        expected = before - RATE * decode_rows(GRADIENTS, DIM, "float32")
        for sender in (first, second):
            np.testing.assert_allclose(rows_at(sender, later), expected, rtol=1e-6)
        assert updates_of(roles.links[0]) == {"applied": 1, "repeated": 3}


@pytest.mark.parametrize("mode", MODES)
def test_a_look_up_waits_for_the_updates_that_it_must_see(mode: str) -> None:
    """It may arrive before them, so that it need not wait for the worker to know that they are applied."""
    bound = 1 if mode == "sync" else 3
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of(mode), job_of()))
        first, second = two_strangers(stack, roles.servers[0], roles)
        before = rows_at(first, BatchId(TRAIN, 0, 0))
        late = LookUp(BatchId(TRAIN, bound, 0), True, (), [GroupKeys(KEYS, TABLES)])
        waiting = first.begin(late)
        rows_at(first, BatchId(TRAIN, 0, 0))  # answered after the other has been handled
        assert second.ask(update(BatchId(TRAIN, 0, 0))) == Ack()
        reply = first.await_reply(waiting)
        assert isinstance(reply, LookedUp)
        assert reply.watermark == 0
        rows = decode_rows(reply.groups[0].rows, DIM, "float32")
        np.testing.assert_allclose(rows, before - RATE * decode_rows(GRADIENTS, DIM, "float32"), rtol=1e-6)


def test_an_update_that_waits_for_other_ranks_counts_once() -> None:
    """In sync mode a repeat can come while its update is still held: it takes the place of the first."""
    step = [BatchId(TRAIN, 0, rank) for rank in range(2)]
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of("sync", ranks=2), job_of(ranks=2)))
        first, second = two_strangers(stack, roles.servers[0], roles)
        before = rows_at(first, step[0])
        first.begin(update(step[0]))
        repeat = first.begin(update(step[0]))
        rows_at(first, step[0])  # answered after both have been handled
        assert second.ask(update(step[1])) == Ack()
        assert first.await_reply(repeat) == Ack()
        for sender, batch in ((first, step[0]), (second, step[1])):
            assert sender.ask(update(batch)) == Ack()
        expected = before - RATE * 2 * decode_rows(GRADIENTS, DIM, "float32")
        np.testing.assert_allclose(rows_at(first, BatchId(TRAIN, 1, 0)), expected, rtol=1e-6)
        assert updates_of(roles.links[0]) == {"applied": 1, "repeated": 2}


@pytest.mark.parametrize("split", [TRAIN, EVAL])
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_takes_ids_and_gradients_once_from_any_senders(mode: str, split: int) -> None:
    batch = BatchId(split, 0, 0)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of(mode, servers=2), job_of()))
        strangers = two_strangers(stack, roles.worker, roles)
        senders: Iterator[Stranger] = cycle(strangers)
        for message in (put_ids(batch), Pull(batch), put_ids(batch), push(batch), push(batch), put_ids(batch)):
            for sender in (next(senders), next(senders)):
                reply = sender.ask(message)
                assert not isinstance(reply, Refused), f"{message} was refused: {reply}"
        assert strangers[0].ask(Pull(batch)) == Ack()
        applied = {"applied": int(split == TRAIN), "repeated": 0}
        assert [updates_of(server) for server in roles.links[:-1]] == [applied, applied]


def test_a_worker_answers_all_who_send_the_ids_of_a_batch_that_it_still_plans() -> None:
    """Each message of a row finds the one before it in planning; the last ones are malformed."""
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of("hybrid"), job_of()))
        senders = two_strangers(stack, roles.worker, roles)
        for step, offsets, answer in ((0, OFFSETS, Ack), (1, OFFSETS, Ack), (2, OFFSETS[::-1].copy(), Refused)):
            message = PutIds(BatchId(TRAIN, step, 0), 0, IDS, offsets)
            requests = [(sender, sender.begin(message)) for sender in senders * 10]
            assert {type(sender.await_reply(number)) for sender, number in requests} == {answer}


@pytest.mark.parametrize("first", [4, 50_000])
def test_a_resumed_job_begins_with_windows_that_end_before_its_first_step(first: int) -> None:
    """Its worker accepts steps far from 0, and treats earlier ones, as of the previous job, as finished."""
    job = Job("train", "", None, train_rows=SIZE, eval_rows=SIZE, steps=first + 4, eval_steps=1, first_step=first)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of("hybrid", servers=2), job))
        stranger = stack.enter_context(Stranger(roles.worker, roles.token))
        for step in (first - 1, first, first + 1):
            batch = BatchId(TRAIN, step, 0)
            for message in (put_ids(batch), Pull(batch), push(batch)):
                reply = stranger.ask(message)
                assert isinstance(reply, Ack) is (step < first or not isinstance(message, Pull)), reply
        assert [updates_of(server)["applied"] for server in roles.links[:-1]] == [2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_the_next_worker_sends_the_gradients_that_a_dead_one_did_not(mode: str) -> None:
    """The rank has its rows from the first worker, and one server has the update; ids may come before or after."""
    batch, later, far = BatchId(TRAIN, 4, 0), BatchId(TRAIN, 5, 0), BatchId(TRAIN, 6, 0)
    job = Job("train", "", None, train_rows=SIZE, eval_rows=SIZE, steps=10, eval_steps=1, first_step=4)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of(mode, servers=2), job, workers=2))
        first, second = roles.links[2:]
        old = stack.enter_context(Stranger(first.own_address, roles.token, "old"))
        new = stack.enter_context(Stranger(second.own_address, roles.token, "new"))
        server = stack.enter_context(Stranger(roles.servers[0], roles.token, "server"))
        old.ask_for(put_ids(batch))
        rows = old.ask_for(Pull(batch))
        plan = RowPlanner(embedding_layout(run_of(mode)), 2).plan(IDS, OFFSETS, SIZE)[0]
        part = slice(plan.bounds[0], plan.bounds[1])
        ones = encode_rows(np.ones((SIZE, DIM), np.float32), "float32")
        server.ask_for(Update(batch, 0, [GroupGradients(plan.keys[part], plan.tables[part], ones[part])]))

        waiting = new.begin(push(batch))
        assert new.ask_for(put_ids(later)) == Ack()
        assert new.ask_for(put_ids(batch)) == Ack()
        assert new.await_reply(waiting) == Ack()
        after = new.ask_for(Pull(later))

        assert [updates_of(each) for each in roles.links[:2]] == [
            {"applied": 1, "repeated": 1},
            {"applied": 1, "repeated": 0},
        ]
        for block, newer in zip(rows.groups[0].rows, after.groups[0].rows, strict=True):
            expected = decode_rows(block, DIM, "float32") - RATE
            np.testing.assert_allclose(decode_rows(newer, DIM, "float32"), expected, rtol=1e-5, atol=1e-7)
        assert new.ask_for(push(later)) == Ack()
        # Finished batches need no worker any more: it stores neither a repeat nor late ids.
        assert new.ask_for(PutIds(far, 6, IDS, OFFSETS)) == Ack()
        assert new.ask_for(put_ids(batch)) == new.ask(Pull(batch)) == new.ask(push(batch)) == Ack()


def test_a_restarted_worker_continues_from_the_finished_steps() -> None:
    step = 1_000_000
    batch = BatchId(TRAIN, step, 0)
    job = Job("train", "", None, train_rows=SIZE, eval_rows=SIZE, steps=2 * step, eval_steps=1)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of("hybrid"), job, workers=2))
        stranger = stack.enter_context(Stranger(roles.worker, roles.token))
        stranger.is_refused("more than 4096 steps ahead", put_ids(batch))
        stranger.is_refused("before 1000001", PutIds(batch, step + 1, IDS, OFFSETS))
        assert stranger.ask(PutIds(batch, step - 3, IDS, OFFSETS)) == Ack()
        assert stranger.ask(Pull(BatchId(TRAIN, step - 4, 0))) == Ack()  # as for every finished batch
