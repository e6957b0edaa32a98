"""A rank's pipeline: an aborted phase ends, wherever its batches are when the instruction arrives."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.observe.trace import Trace
from persia_cli.plan.job import plan_job
from persia_cli.roles.nn_worker.pipeline import Pipeline
from persia_cli.wire.job_messages import CutShort, EvaluateSteps, Hold, PhaseWork, TrainSteps
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import BatchId
from persia_cli.wire.messages import Ack, PutSamples, Rows
from persia_cli.wire.sockets import Context
from tests.support.runs import make_facts, make_run

pytestmark = pytest.mark.timeout(60)

STEPS = 3


class Worker:
    """An embedding worker that answers when a test requests it."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def request(self, message: Any, on_reply: Any = None, waiting_for: str = "") -> None:
        self.replies.append(on_reply)

    def answer(self, reply: Any) -> None:
        replies, self.replies = self.replies, []
        for on_reply in replies:
            on_reply(reply)


class Rank:
    """A pipeline with all the steps of a phase pulled and handed to the training thread, which pushes them."""

    def __init__(self, loop: Loop, split: int) -> None:
        self.split, self.worker, self.helds = split, Worker(), list[int]()
        link: Any = SimpleNamespace(
            trace=Trace(),
            index=0,
            connect=lambda role: [self.worker],
            held=lambda number, step: self.helds.append(step),
        )
        self.pipeline = Pipeline(loop, link, "inproc://pipeline")
        run = make_run(train={"batch_size": 1})
        job = plan_job(run, make_facts(run, STEPS, STEPS), "train", Path("run")).job
        self.pipeline.connect(run, job, {TRAIN: STEPS, EVAL: STEPS}, STEPS)
        self.lane = self.pipeline._lanes[split]

    def begin(self) -> None:
        work: PhaseWork = TrainSteps(0, STEPS, 0, 0) if self.split == TRAIN else EvaluateSteps(0, STEPS)
        assert self.pipeline.execute(1, work)
        self.worker.answer(Rows(0, (), 0, 0, []))
        for step in range(STEPS):
            batch = BatchId(self.split, step, 0)
            none = np.zeros((1, 0), np.float32)
            self.lane.samples[step] = PutSamples(batch, 1.0, none, none, None, None, None)
            self.pipeline._pass_on(self.lane)
            self.pipeline._push(batch, [])


@pytest.fixture(params=[TRAIN, EVAL], ids=["training", "evaluating"])
def rank(request: pytest.FixtureRequest) -> Iterator[Rank]:
    with Context() as context:
        loop = Loop(context, "nn-worker-0")
        yield Rank(loop, request.param)
        loop.close()


def test_a_hold_after_the_last_batch_does_not_block_the_end_of_a_phase(rank: Rank) -> None:
    rank.begin()
    assert not rank.lane.drained.is_set()
    rank.pipeline.execute(2, Hold(rank.split))
    assert rank.helds == [STEPS]
    rank.worker.answer(Ack())  # the last updates are applied while the rank is held
    rank.pipeline.execute(3, CutShort(rank.split, STEPS))
    assert rank.lane.drained.is_set()


def test_a_hold_after_the_end_changes_nothing(rank: Rank) -> None:
    rank.begin()
    rank.worker.answer(Ack())
    assert rank.lane.drained.is_set()
    rank.pipeline.execute(2, Hold(rank.split))
    rank.pipeline.execute(3, CutShort(rank.split, STEPS))
    assert rank.lane.drained.is_set()
    assert not rank.worker.replies, "nothing further is pulled"
    handed = [rank.pipeline._ready.get_nowait() for _ in range(STEPS + 1)]
    assert [ready is None for ready in handed] == [False] * STEPS + [True]
    assert rank.pipeline._ready.empty(), "the phase ends once"
