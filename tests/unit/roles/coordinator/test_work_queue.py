"""Work items: each step goes to one loader, also after repeated requests."""

from typing import cast

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.roles.coordinator.work_queue import ITEM_STEPS, WorkQueue
from persia_cli.wire.job_messages import EvaluateSteps, Instruction, Item, TakeItem, TrainSteps
from persia_cli.wire.message import Message, Sender
from persia_cli.wire.server import Peer, Server


class Answers:
    """In place of a server: its replies, without a memory of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[Peer, Message]] = []

    def reply(self, peer: Peer, message: Message) -> None:
        self.sent.append((peer, message))


def take(split: int = TRAIN, finished: int = 0) -> TakeItem:
    return TakeItem(Sender("data-loader", 0, 1), split, finished)


def queue_of(steps: int) -> tuple[WorkQueue, Answers]:
    """Work of so many steps, given out from now on."""
    answers = Answers()
    work = WorkQueue(cast(Server, answers), 0, steps)
    work.instruct(Instruction(1, TrainSteps(0, 40)))
    return work, answers


def peer(name: str, request: int) -> Peer:
    return Peer(name.encode(), request)


def test_a_repeat_without_a_stored_answer_gets_the_same_steps() -> None:
    work, answers = queue_of(3 * ITEM_STEPS)
    for name, request in [("a", 1), ("a", 1), ("b", 1), ("a", 1), ("a", 2), ("a", 2), ("b", 1), ("a", 3), ("a", 3)]:
        work.take(name, peer(name, request), take())
    firsts = [(who.identity.decode(), cast(Item, item).first, cast(Item, item).end) for who, item in answers.sent]
    first, second, third = 0, ITEM_STEPS, 2 * ITEM_STEPS
    assert firsts == [
        ("a", first, False), ("a", first, False), ("b", second, False), ("a", first, False),
        ("a", third, False), ("a", third, False), ("b", second, False), ("a", 0, True), ("a", 0, True),
    ]  # fmt: skip


def test_splits_are_asked_for_side_by_side() -> None:
    work, answers = queue_of(ITEM_STEPS)
    work.take("a", peer("a", 1), take(EVAL))
    assert answers.sent == []  # until there is an evaluation
    work.take("a", peer("a", 2), take(TRAIN))
    work.evaluate(0, 2)
    work.instruct(Instruction(2, EvaluateSteps(0, 20)))
    work.take("a", peer("a", 1), take(EVAL))
    work.take("a", peer("a", 2), take(TRAIN))
    assert [(who.request, item) for who, item in answers.sent if isinstance(item, Item)] == [
        (2, Item(0, ITEM_STEPS, end=False)),
        (1, Item(0, 2, end=False)),
        (1, Item(0, 2, end=False)),
        (2, Item(0, ITEM_STEPS, end=False)),
    ]


def test_unfinished_work_of_a_dead_loader_is_dealt_again_in_order() -> None:
    work, answers = queue_of(6 * ITEM_STEPS)
    for request, finished in ((1, 0), (2, 0), (3, ITEM_STEPS)):
        work.take("a", peer("a", request), take(finished=finished))
    work.take("b", peer("b", 1), take())
    assert work.take_back("a") == 2 * ITEM_STEPS  # the first item is finished
    assert work.take_back("a") == 0
    for name, request in [("a", 7), ("b", 2), ("a", 8), ("a", 9), ("a", 10)]:
        work.take(name, peer(name, request), take())
    items = [cast(Item, item).first // ITEM_STEPS for _, item in answers.sent]
    assert items == [0, 1, 2, 3, 1, 2, 4, 5, 0]
    assert cast(Item, answers.sent[-1][1]).end


def test_a_loader_that_waits_gets_the_steps_of_the_dead_one_at_once() -> None:
    work, answers = queue_of(ITEM_STEPS)
    work.evaluate(0, ITEM_STEPS)
    work.instruct(Instruction(2, EvaluateSteps(0, ITEM_STEPS)))
    work.take("a", peer("a", 1), take(EVAL))
    work.take("b", peer("b", 1), take(EVAL))
    assert work.take_back("a") == ITEM_STEPS
    assert answers.sent[1:] == [(peer("b", 1), Item(0, ITEM_STEPS, end=False))]
