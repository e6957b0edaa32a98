"""A repeated request of training gets the first answer and changes nothing twice, also where its server has died."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.control.position import TRAIN
from persia_cli.errors import MemoryFileError
from persia_cli.plan.job import Job
from persia_cli.store.memory_file import new_file
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import decode_rows, encode_rows
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import Ack, GroupGradients, GroupKeys, LookUp, Update
from tests.conftest import poll_for
from tests.support.alone import alone
from tests.support.runs import make_run
from tests.support.stranger import Stranger

DIM, RANKS, KEYS, STEPS = 4, 2, 60, 8
JOB = Job("train", "", None, train_rows=160, eval_rows=16, steps=10, eval_steps=1)
TABLES = np.zeros(KEYS, np.uint16)


class Death(BaseException):
    """The end of a process."""


def run_of(mode: str, embedding: dict[str, object] | None = None, **cluster: object) -> Run:
    """A job whose rows count their updates: each adds 1."""
    return make_run(
        sparse=["a"],
        model={"kind": "ffnn", "dim": DIM, "hidden": [4]},
        embedding={"capacity": 1000, "num_partitions": 1} | (embedding or {}),
        optimizer={"embedding": {"kind": "sgd", "lr": 1.0}, "dense": {"kind": "sgd", "lr": 0.1}},
        mode={"kind": mode},
        cluster={"kind": "local", "nn_workers": RANKS, **cluster},
        train={"batch_size": 8 * RANKS},
    )


def look_up(step: int, rank: int, create: bool = True) -> LookUp:
    return LookUp(BatchId(TRAIN, step, rank), create, (), [GroupKeys(keys_of(step, rank), TABLES)])


def update(step: int, rank: int) -> Update:
    gradients = encode_rows(np.full((KEYS, DIM), -1, np.float32), "float32")
    return Update(BatchId(TRAIN, step, rank), 0, [GroupGradients(keys_of(step, rank), TABLES, gradients)])


def keys_of(step: int, rank: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    some = np.random.default_rng(0).integers(2**64, size=100, dtype=np.uint64)
    return np.random.default_rng([step, rank]).choice(some, KEYS, replace=False)


@contextmanager
def ranks_of(run: Run, file: int, incarnation: int) -> Iterator[list[Stranger]]:
    """Both ranks of a process of the server, which recovers the memory of the previous process."""
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run, JOB, memory_file=file, incarnation=incarnation))
        yield [stack.enter_context(Stranger(roles.servers[0], roles.token, f"rank-{rank}")) for rank in range(RANKS)]
    # The file can be recovered once nothing of the server is left.
    del roles, stack
    gc.collect()


@contextmanager
def dies(run: Run, file: int, incarnation: int) -> Iterator[list[Stranger]]:
    """The ranks of a process that dies before the end of the block."""
    with pytest.raises(Death), ranks_of(run, file, incarnation) as ranks:
        yield ranks
    gc.collect()


def once(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[..., None]) -> None:
    """Make the process die at the next call of a method, after a part of its work."""

    def dying(shard: Shard, *arguments: Any) -> None:
        monkeypatch.setattr(Shard, name, real)
        work(real, shard, *arguments)
        raise Death

    real = getattr(Shard, name)
    monkeypatch.setattr(Shard, name, dying)


def half(real: Callable[..., None], shard: Shard, group: int, rule: Any, *arrays: Any) -> None:
    """Change half of the rows."""
    keys, rows, tables, gradients, done = arrays
    real(shard, group, rule, keys[:30], rows[:30], tables[:30], gradients[: 30 * DIM], done)


@contextmanager
def file_of_a_server() -> Iterator[int]:
    file = new_file("server")
    try:
        yield file
    finally:
        gc.collect()
        os.close(file)


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_every_row_has_every_update_once(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    run = run_of(mode)
    with file_of_a_server() as file:
        with dies(run, file, 1) as (zero, one):
            first = [each.ask_for(look_up(0, rank)).groups[0] for rank, each in enumerate((zero, one))]
            begun = [each.begin(update(0, rank)) for rank, each in enumerate((zero, one))]
            assert [each.await_reply(number) for each, number in zip((zero, one), begun, strict=True)] == [Ack()] * 2
            zero.ask_for(look_up(1, 0))
            once(monkeypatch, "_mark_group_done", lambda *_: None)
            one.begin(look_up(1, 1))
        with dies(run, file, 2) as (zero, one):
            held = zero.begin(look_up(1, 0))
            answered = one.ask_for(look_up(1, 1)).groups[0]
            known = np.isin(keys_of(1, 1), np.concatenate([keys_of(0, 0), keys_of(0, 1), keys_of(1, 0)]))
            assert answered.unknown.tolist() == np.flatnonzero(~known).tolist()
            zero.await_reply(held)
            once(monkeypatch, "_change", half)
            if mode == "sync":
                one.begin(update(1, 1))
            zero.begin(update(1, 0))
        with ranks_of(run, file, 3) as (zero, one):
            held = one.begin(update(1, 1))
            assert zero.ask_for(update(1, 0)) == Ack()
            assert one.await_reply(held) == Ack()
            assert [each.ask_for(update(1, rank)) for rank, each in enumerate((zero, one))] == [Ack()] * 2
            for rank in range(RANKS):
                [rows] = zero.ask_for(look_up(0, rank, create=False)).groups
                values = [decode_rows(each.rows, DIM, "float32") for each in (rows, first[rank])]
                updates = sum(
                    np.isin(keys_of(0, rank), keys_of(step, each)) for step in range(2) for each in range(RANKS)
                )
                np.testing.assert_allclose(values[0] - values[1], np.repeat(updates[:, None], DIM, 1), atol=1e-5)


def test_a_request_that_is_not_repeated_rolls_the_job_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("hybrid", silence_timeout_s=1.0)
    with file_of_a_server() as file:
        with dies(run, file, 1) as (zero, _):
            zero.ask_for(look_up(0, 0))
            once(monkeypatch, "_change", half)
            zero.begin(update(0, 0))
        why = "the update of step 0 of rank 0, which the earlier process had begun, has not come again within 1 s"
        with pytest.raises(MemoryFileError, match=why):
            _wait_for_end(run, file)


def _wait_for_end(run: Run, file: int) -> None:
    """Make a server wait for a request that is not repeated, while another one is."""
    with alone(run, JOB, memory_file=file, incarnation=2) as roles, Stranger(roles.servers[0], roles.token) as other:
        other.begin(look_up(0, 1))
        poll_for(lambda: roles.links[0].has_ended, 20, "the end of the server")


POLICIES = [
    {"admission": {"min_count": 2}, "capacity": 40, "when_full": "evict_lfu"},
    {"capacity": 40, "when_full": "evict_lru", "expire_after": 3},
    pytest.param({"admission": {"min_count": 2}}, marks=pytest.mark.slow),
    pytest.param({"capacity": 40, "when_full": "refuse"}, marks=pytest.mark.slow),
]


def answer(stranger: Stranger, step: int, rank: int, keys: np.ndarray) -> tuple[bytes, list[int]]:
    """Look keys up; returns their rows and the positions of those that had none before."""
    [group] = stranger.ask_for(
        LookUp(BatchId(TRAIN, step, rank), True, (), [GroupKeys(keys, TABLES[: keys.size])])
    ).groups
    return group.rows.tobytes(), group.unknown.tolist()


def answers(run: Run, repeats: bool, deaths: bool) -> list[tuple[bytes, list[int]]]:
    """The answers to all look-ups of a random job; each is repeated, sometimes to the next process, as the first."""
    rng = np.random.default_rng(0)
    some = rng.integers(2**64, size=120, dtype=np.uint64)
    batches = [[rng.choice(some, 20, replace=False) for _ in range(RANKS)] for _ in range(STEPS)]
    gradients = [rng.standard_normal((20, DIM)).astype(np.float32) for _ in range(RANKS)]
    found = list[tuple[bytes, list[int]]]()

    def update(ranks: list[Stranger], step: int) -> None:
        sent = [
            each.begin(Update(BatchId(TRAIN, step, rank), 0, [GroupGradients(keys, tables, encoded[rank])]))
            for rank, (each, keys) in enumerate(zip(ranks, batches[step], strict=True))
        ]
        assert [each.await_reply(number) for each, number in zip(ranks, sent, strict=True)] == [Ack()] * RANKS

    tables, encoded = np.zeros(20, np.uint16), [encode_rows(each, "float32") for each in gradients]
    with file_of_a_server() as file:
        for incarnation, step in enumerate(range(0, STEPS, 4) if deaths else [0], 1):
            with ranks_of(run, file, incarnation) as ranks:
                for at in range(step, min(step + 5, STEPS) if deaths else STEPS):
                    if at > step or incarnation == 1:
                        found += [answer(ranks[rank], at, rank, batches[at][rank]) for rank in range(RANKS)]
                    if repeats:
                        for rank in rng.integers(RANKS, size=3).tolist():
                            again = answer(ranks[rank], at, rank, batches[at][rank])
                            assert again == found[RANKS * at + rank], "a repeat has another answer"
                    if not deaths or at < step + 4:
                        update(ranks, at)
    return found


@pytest.mark.parametrize("embedding", POLICIES, ids=str)
def test_a_repeat_is_answered_as_the_first_time_and_changes_nothing(embedding: dict[str, object]) -> None:
    """After the look-ups of all ranks, and where the server has died meanwhile too."""
    run = run_of("sync", embedding)
    straight = answers(run, repeats=False, deaths=False)
    assert any(len(new) for _, new in straight[-4:]), "rows are still made or refused at the end"
    assert answers(run, repeats=True, deaths=False) == straight
    assert answers(run, repeats=True, deaths=True) == straight
