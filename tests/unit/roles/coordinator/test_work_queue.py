"""A request for work that comes again gets the same steps, also when the server has forgotten its answer."""

from typing import cast

from persia_cli.control.position import TRAIN
from persia_cli.roles.coordinator.work_queue import ITEM_STEPS, WorkQueue
from persia_cli.wire.job_messages import Instruction, Item, TakeItem, TrainSteps
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
