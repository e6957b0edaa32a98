"""Embedding worker and servers forward encoded rows and gradients, in every wire dtype."""

from contextlib import ExitStack

import numpy as np
import pytest

from persia_cli.config.schema import Run
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.plan.job import Job
from persia_cli.store.layout import table_salt
from persia_cli.store.wire_rows import decode_rows, encode_rows, row_bytes
from persia_cli.wire.message import BatchId, TableTotals
from persia_cli.wire.messages import (
    Ack,
    GroupGradients,
    GroupKeys,
    LookUp,
    Pull,
    PullWeights,
    PushGradients,
    PutIds,
    ReadRows,
    Update,
)
from tests import naive
from tests.support.alone import alone
from tests.support.runs import make_run
from tests.support.stranger import Stranger

DIM, RATE, SIZE = 5, 0.1, 32
WIRES = ["float32", "float16", "bfloat16"]
TOLERANCE = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}
IDS = np.random.default_rng(0).integers(0, 20, SIZE, np.uint64)
OFFSETS = np.arange(SIZE + 1, dtype=np.uint32)
UNIQUE = list(dict.fromkeys(IDS.tolist()))


def run_of(wire: str, mode: str = "hybrid", ranks: int = 1) -> Run:
    return make_run(
        sparse=["a"],
        model={"kind": "ffnn", "dim": DIM, "hidden": [4]},
        embedding={"capacity": 100_000, "wire": wire},
        mode={"kind": mode},
        cluster={"kind": "local", "embedding_servers": 2, "nn_workers": ranks},
        train={"batch_size": SIZE * ranks},
    )


def job_of(ranks: int = 1) -> Job:
    return Job("train", "", None, train_rows=10 * SIZE * ranks, eval_rows=SIZE * ranks, steps=10, eval_steps=1)


def initial_rows(ids: list[int]) -> np.ndarray:
    return naive.initial_rows(0, table_salt("a"), ids, DIM, 0.01)


def look_up(batch: BatchId, keys: np.ndarray) -> LookUp:
    return LookUp(batch, True, (), [GroupKeys(keys, np.zeros(keys.size, np.uint16))])


def pulled(stranger: Stranger, batch: BatchId, wire: str) -> dict[int, np.ndarray]:
    """Send the ids of a batch and pull its rows; returns them by id."""
    assert stranger.ask(PutIds(batch, 0, IDS, OFFSETS)) == Ack()
    group, *_ = stranger.ask_for(Pull(batch)).groups
    assert group.offsets is None
    assert [(block.dtype, block.shape[1]) for block in group.rows] == [(np.uint8, row_bytes(DIM, wire))] * 2
    assert all(len(block) for block in group.rows)
    rows = np.concatenate([decode_rows(block, DIM, wire) for block in group.rows])
    return {id_: rows[group.inverse[place]] for place, id_ in enumerate(IDS.tolist())}


@pytest.mark.parametrize("wire", WIRES)
def test_rows_and_gradients_travel_encoded(wire: str) -> None:
    with alone(run_of(wire), job_of()) as roles, Stranger(roles.worker, roles.token) as stranger:
        first = BatchId(TRAIN, 0, 0)
        rows = pulled(stranger, first, wire)
        start = dict(zip(UNIQUE, initial_rows(UNIQUE), strict=True))
        for id_, row in rows.items():
            np.testing.assert_allclose(row, start[id_], atol=TOLERANCE[wire] * 0.01)

        [group] = stranger.ask_for(Pull(first)).groups
        by_row = dict(zip(group.inverse.tolist(), IDS.tolist(), strict=True))
        gradients = np.array([[by_row[row] + 1.0] * DIM for row in range(len(by_row))], np.float32)
        assert stranger.ask(PushGradients(first, 0, [encode_rows(gradients, wire)])) == Ack()
        for step in (1, 2):
            for id_, row in pulled(stranger, BatchId(TRAIN, step, 0), wire).items():
                np.testing.assert_allclose(row, start[id_] - RATE * (id_ + 1), rtol=TOLERANCE[wire])


def test_an_update_that_is_wrong_in_its_last_group_is_not_applied_at_all() -> None:
    run = make_run(
        sparse=["a", "b"],
        embedding={"capacity": 10_000, "tables": {"b": {"dim": 3}}},
        mode={"kind": "hybrid"},
        train={"batch_size": SIZE},
    )
    batch, later = BatchId(TRAIN, 0, 0), BatchId(TRAIN, 1, 0)
    key, a, b = np.array([7], np.uint64), np.zeros(1, np.uint16), np.ones(1, np.uint16)
    gradient = encode_rows(np.ones((1, 8), np.float32), "float32")
    short = encode_rows(np.ones((1, 3), np.float32), "float32")
    with alone(run, job_of()) as roles, Stranger(roles.servers[0], roles.token) as stranger:

        def rows_at(step: BatchId) -> list[bytes]:
            reply = stranger.ask_for(LookUp(step, True, (), [GroupKeys(key, a), GroupKeys(key, b)]))
            return [group.rows.tobytes() for group in reply.groups]

        first = GroupGradients(key, a, gradient)
        before = rows_at(batch)
        stranger.is_refused("does not belong", Update(batch, 0, [first, GroupGradients(key, b + 1, short)]))
        assert rows_at(later) == before
        assert stranger.ask(Update(batch, 0, [first, GroupGradients(key, b, short)])) == Ack()
        assert rows_at(later) != before


@pytest.mark.parametrize("mode", ["hybrid", "sync"])
def test_a_look_up_that_is_asked_again_is_counted_once(mode: str) -> None:
    keys, tables = np.arange(2, dtype=np.uint64), np.zeros(2, np.uint16)
    gradients = encode_rows(np.ones((2, DIM), np.float32), "float32")
    with alone(run_of("float32", mode), job_of()) as roles, Stranger(roles.servers[0], roles.token) as stranger:
        for step in range(2):
            batch = BatchId(TRAIN, step, 0)
            for _ in range(3):
                [group] = stranger.ask_for(look_up(batch, keys)).groups
                assert group.unknown.tolist() == ([] if step else [0, 1])
            assert stranger.ask(Update(batch, 0, [GroupGradients(keys, tables, gradients)])) == Ack()
            answer = stranger.ask_for(look_up(batch, keys))
            assert answer.watermark == step
            assert answer.totals == TableTotals(rows=2, evicted=0, hits=2 * step, misses=2)
        counters = roles.links[0].counters().tables["a"]
        assert (counters["hits"], counters["misses"], counters["rows"]) == (2, 2, 2)


def test_in_sync_mode_gradients_of_all_ranks_are_added_up() -> None:
    """Rank 0 has keys 0 and 1, rank 1 has keys 1 and 2: of server 0 all."""
    wire = "bfloat16"
    tables = np.zeros(2, np.uint16)
    keys = [np.array([0, 1], np.uint64), np.array([1, 2], np.uint64)]
    gradient = encode_rows(np.full((2, DIM), 1.5, np.float32), wire)
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of(wire, "sync", ranks=2), job_of(ranks=2)))
        ranks = [stack.enter_context(Stranger(roles.servers[0], roles.token, f"rank-{rank}")) for rank in range(2)]
        before = {}
        for rank, own in enumerate(keys):
            [group] = ranks[rank].ask_for(look_up(BatchId(TRAIN, 0, rank), own)).groups
            before |= dict(zip(own.tolist(), decode_rows(group.rows, DIM, wire), strict=True))
        updates = [
            Update(BatchId(TRAIN, 0, rank), 0, [GroupGradients(own, tables, gradient)]) for rank, own in enumerate(keys)
        ]
        number = ranks[0].begin(updates[0])
        assert ranks[1].ask(updates[1]) == Ack()
        assert ranks[0].await_reply(number) == Ack()
        for rank, own in enumerate(keys):
            [group] = ranks[rank].ask_for(look_up(BatchId(TRAIN, 1, rank), own)).groups
            for key, row in zip(own.tolist(), decode_rows(group.rows, DIM, wire), strict=True):
                total = 3.0 if key == 1 else 1.5
                np.testing.assert_allclose(row, before[key] - RATE * total, rtol=TOLERANCE[wire])


def test_in_sync_mode_new_ids_get_rows_in_the_order_of_ranks() -> None:
    """Rank 1 first requests a key that both have: rank 0 gets its row, at each step again."""
    with ExitStack() as stack:
        roles = stack.enter_context(alone(run_of("float32", "sync", ranks=2), job_of(ranks=2)))
        ranks = [stack.enter_context(Stranger(roles.servers[0], roles.token, f"rank-{rank}")) for rank in range(2)]
        for step in range(2):
            key, batches = np.array([step], np.uint64), [BatchId(TRAIN, step, rank) for rank in range(2)]
            early = ranks[1].begin(look_up(batches[1], key))
            [other] = ranks[1].ask_for(LookUp(BatchId(EVAL, 0, 1), False, (), look_up(batches[1], key).groups)).groups
            assert other.unknown.size == 1, "an evaluation does not wait, and sees no answer"
            assert ranks[0].ask_for(look_up(batches[0], key)).groups[0].unknown.tolist() == [0]
            assert ranks[1].await_reply(early).groups[0].unknown.tolist() == []
            nothing = [
                GroupGradients(key[:0], np.zeros(0, np.uint16), encode_rows(np.zeros((0, DIM), np.float32), "float32"))
            ]
            last = ranks[0].begin(Update(batches[0], 0, nothing))
            assert ranks[1].ask(Update(batches[1], 0, nothing)) == Ack()
            assert ranks[0].await_reply(last) == Ack()


def test_an_evaluation_changes_nothing() -> None:
    with alone(run_of("float32"), job_of()) as roles, Stranger(roles.worker, roles.token) as stranger:
        batch = BatchId(EVAL, 0, 0)
        rows = pulled(stranger, batch, "float32")
        assert all(not row.any() for row in rows.values())
        assert stranger.ask(PushGradients(batch, 0, [])) == Ack()
        counted = [link.counters().tables["a"] for link in roles.links[:-1]]
        assert all(figures["rows"] == figures["misses"] == 0 for figures in counted)


@pytest.mark.parametrize("mode", ["hybrid", "sync"])
def test_rows_that_are_only_read_are_those_of_a_look_up(mode: str) -> None:
    with alone(run_of("float16", mode), job_of()) as roles, Stranger(roles.worker, roles.token) as stranger:
        trained = pulled(stranger, BatchId(TRAIN, 0, 0), "float16")
        ids = np.array([UNIQUE[1], 10**9, UNIQUE[0], UNIQUE[1]], np.uint64)
        # The batch whose name it bears may be unknown, of an evaluation that is far, or over; it stays what it was.
        for batch in (BatchId(EVAL, 0, 0), BatchId(TRAIN, 0, 0)):
            for _ in range(2):
                reply = stranger.ask_for(ReadRows(batch, 2, ids, np.array([0, 3, 4], np.uint32)))
                [group] = reply.groups
                rows = np.concatenate([decode_rows(block, DIM, "float16") for block in group.rows])[group.inverse]
                expected = [trained[UNIQUE[1]], np.zeros(DIM), trained[UNIQUE[0]], trained[UNIQUE[1]]]
                np.testing.assert_array_equal(rows, expected)
                assert group.offsets.tolist() == [0, 3, 4]
        figures = [link.counters().tables["a"] for link in roles.links[:-1]]
        assert sum(each["rows"] for each in figures) == sum(each["misses"] for each in figures) == len(UNIQUE)
        stranger.is_refused("malformed", ReadRows(BatchId(EVAL, 0, 0), 3, ids, np.array([0, 3, 4], np.uint32)))


DENSE_ROWS, DENSE_DIM = 5, 1024


def test_dense_weights_travel_with_the_rows_and_in_float32() -> None:
    """Their rows begin as zeros and move by their own gradients; a read-only look-up returns only them."""
    with alone(run_of("bfloat16", "async"), job_of()) as roles, Stranger(roles.worker, roles.token) as stranger:
        first, second = (BatchId(TRAIN, step, 0) for step in (0, 1))
        assert stranger.ask(PutIds(first, 0, IDS, OFFSETS)) == Ack()
        own, (weights, places, offsets) = stranger.ask_for(Pull(first, DENSE_ROWS)).groups
        assert sorted(places.tolist()) == list(range(DENSE_ROWS))
        assert (offsets, sum(map(len, weights))) == (None, DENSE_ROWS)
        assert not np.concatenate(weights).view(np.float32).any()
        rows = encode_rows(np.zeros((sum(map(len, own.rows)), DIM), np.float32), "bfloat16")
        gradients = np.empty((DENSE_ROWS, DENSE_DIM), np.float32)
        gradients[places] = np.arange(DENSE_ROWS, dtype=np.float32)[:, None]
        stranger.is_refused("expected gradients of shapes", PushGradients(first, 0, [rows]))
        assert stranger.ask(PushGradients(first, 0, [rows, gradients.view(np.uint8)])) == Ack()

        [(blocks, again, _)] = stranger.ask_for(PullWeights(second, DENSE_ROWS)).groups
        np.testing.assert_array_equal(again, places)
        weights = np.concatenate([decode_rows(block, DENSE_DIM, "float32") for block in blocks])[places]
        np.testing.assert_allclose(weights, -RATE * np.repeat(np.arange(DENSE_ROWS), DENSE_DIM).reshape(weights.shape))
        most = 2**17
        stranger.is_refused(f"at most {most}", PullWeights(second, most + 1))
        stranger.is_refused(f"at most {most}", Pull(second, most + 1))


def test_dense_weights_that_do_not_live_on_servers_are_refused() -> None:
    batch = BatchId(TRAIN, 0, 0)
    with alone(run_of("float32"), job_of()) as roles, Stranger(roles.worker, roles.token) as stranger:
        stranger.is_refused("this job has at most 0", Pull(batch, 1))
        stranger.is_refused("this job has at most 0", PullWeights(batch, 1))
        stranger.is_refused("no dense weights", PullWeights(batch, 0))
