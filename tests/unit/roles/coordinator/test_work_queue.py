"""Each step is given to one loader, and again only after its death, if it was not finished."""

from typing import cast

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.roles.coordinator.work_queue import ITEM_STEPS, WorkQueue
from persia_cli.wire.job_messages import EvaluateSteps, Instruction, Item, TakeItem, TrainSteps
from persia_cli.wire.message import Sender
from persia_cli.wire.server import Peer, Server
from tests.support.coordination import Replies


def test_a_repeat_without_a_stored_answer_gets_the_same_steps() -> None:
    replies = Replies()
    work = WorkQueue(cast(Server, replies), 0, 3 * ITEM_STEPS)
    work.instruct(Instruction(1, TrainSteps(0, 3 * ITEM_STEPS)))
    for name, request in [("a", 1), ("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 3)]:
        work.take(name, Peer(name.encode(), request), TakeItem(Sender("data-loader", 0, 1), TRAIN, 0))
    items = [cast(Item, reply) for _, reply in replies.sent]
    assert [None if item.end else item.first // ITEM_STEPS for item in items] == [0, 0, 1, 0, 2, 1, None, None]


def test_a_loader_that_dies_in_training_gives_back_no_steps_of_an_evaluation() -> None:
    replies, loader = Replies(), Sender("data-loader", 0, 1)
    work = WorkQueue(cast(Server, replies), 0, 3 * ITEM_STEPS)
    work.evaluate(0, ITEM_STEPS)
    work.instruct(Instruction(1, EvaluateSteps(0, ITEM_STEPS)))
    work.take("a", Peer(b"a", 1), TakeItem(loader, EVAL, 0))
    assert work.take_back("a") == ITEM_STEPS, "they are not evaluated yet"
    work.take("a", Peer(b"a", 2), TakeItem(loader, EVAL, 0))
    work.end_evaluation()
    work.instruct(Instruction(2, TrainSteps(0, 3 * ITEM_STEPS)))
    work.take("a", Peer(b"a", 3), TakeItem(loader, TRAIN, 0))
    assert work.take_back("a") == ITEM_STEPS
    work.take("a", Peer(b"a", 4), TakeItem(loader, EVAL, 0))
    assert replies.to(Peer(b"a", 4)) == []
