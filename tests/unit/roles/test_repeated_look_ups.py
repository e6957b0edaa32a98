"""A repeated look-up of training gets the first answer, also after other look-ups."""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.control.position import TRAIN
from persia_cli.plan.job import Job
from persia_cli.store.memory.memory_file import new_file
from persia_cli.store.wire_rows import encode_rows
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import Ack, GroupGradients, GroupKeys, LookUp, Update
from tests.support.alone import alone
from tests.support.runs import make_run
from tests.support.stranger import Stranger

DIM, RANKS, STEPS = 4, 2, 8
POLICIES = [
    {"admission": {"min_count": 2}, "capacity": 40, "when_full": "evict_lfu"},
    {"capacity": 40, "when_full": "evict_lru", "expire_after": 3},
    pytest.param({"admission": {"min_count": 2}}, marks=pytest.mark.slow),
    pytest.param({"capacity": 40, "when_full": "refuse"}, marks=pytest.mark.slow),
]


def run_of(embedding: dict[str, object]) -> Run:
    return make_run(
        sparse=["a"],
        model={"kind": "ffnn", "dim": DIM, "hidden": [4]},
        embedding={"capacity": 1000, "num_partitions": 1} | embedding,
        mode={"kind": "sync"},
        cluster={"kind": "local", "nn_workers": RANKS},
        train={"batch_size": 8 * RANKS},
    )


JOB = Job("train", "", None, train_rows=STEPS * 8 * RANKS, eval_rows=8 * RANKS, steps=STEPS, eval_steps=1)


@contextmanager
def ranks_of(run: Run, file: int, life: int) -> Iterator[list[Stranger]]:
    """Both ranks of a process of the server, which recovers the memory of the previous process."""
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run, JOB, memory_file=file, life=life))
        yield [stack.enter_context(Stranger(roles.servers[0], roles.token, f"rank-{rank}")) for rank in range(RANKS)]
    # The file can be recovered once nothing of the server is left.
    del roles, stack
    gc.collect()


def answer(stranger: Stranger, step: int, rank: int, keys: np.ndarray) -> tuple[bytes, list[int]]:
    """Look keys up; returns their rows and the positions of those that had none before."""
    tables = np.zeros(keys.size, np.uint16)
    [group] = stranger.ask_for(LookUp(BatchId(TRAIN, step, rank), True, [GroupKeys(keys, tables)])).groups
    return group.rows.tobytes(), group.unknown.tolist()


def answers(run: Run, repeats: bool, deaths: bool) -> list[tuple[bytes, list[int]]]:
    """The answers to all look-ups of a random job; each is repeated, sometimes to the next process, as the first."""
    rng = np.random.default_rng(0)
    some = rng.integers(2**64, size=120, dtype=np.uint64)
    batches = [[rng.choice(some, 20, replace=False) for _ in range(RANKS)] for _ in range(STEPS)]
    gradients = [rng.standard_normal((20, DIM)).astype(np.float32) for _ in range(RANKS)]
    file, found = new_file("server"), list[tuple[bytes, list[int]]]()

    def update(ranks: list[Stranger], step: int) -> None:
        sent = [
            each.begin(Update(BatchId(TRAIN, step, rank), 0, [GroupGradients(keys, tables, encoded[rank])]))
            for rank, (each, keys) in enumerate(zip(ranks, batches[step], strict=True))
        ]
        assert [each.await_reply(number) for each, number in zip(ranks, sent, strict=True)] == [Ack()] * RANKS

    tables, encoded = np.zeros(20, np.uint16), [encode_rows(each, "float32") for each in gradients]
    try:
        for life, step in enumerate(range(0, STEPS, 4) if deaths else [0], 1):
            with ranks_of(run, file, life) as ranks:
                for at in range(step, min(step + 5, STEPS) if deaths else STEPS):
                    if at > step or life == 1:
                        found += [answer(ranks[rank], at, rank, batches[at][rank]) for rank in range(RANKS)]
                    if repeats:
                        for rank in rng.integers(RANKS, size=3).tolist():
                            again = answer(ranks[rank], at, rank, batches[at][rank])
                            assert again == found[RANKS * at + rank], "a repeat has another answer"
                    if not deaths or at < step + 4:
                        update(ranks, at)
    finally:
        os.close(file)
    return found


@pytest.mark.parametrize("embedding", POLICIES, ids=str)
def test_a_repeat_is_answered_as_the_first_time_and_changes_nothing(embedding: dict[str, object]) -> None:
    """After the look-ups of all ranks, and where the server has died meanwhile too."""
    run = run_of(embedding)
    straight = answers(run, repeats=False, deaths=False)
    assert any(len(new) for _, new in straight[-4:]), "rows are still made or refused at the end"
    assert answers(run, repeats=True, deaths=False) == straight
    assert answers(run, repeats=True, deaths=True) == straight
