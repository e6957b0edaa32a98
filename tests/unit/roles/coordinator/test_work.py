"""Each step is given to one loader, and again only after its death, if it was not finished."""

from persia_cli.control.position import EVAL, TRAIN
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.work import ITEM_STEPS
from persia_cli.wire.job_messages import Death, Done, Item, NextItem
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.runs import make_run

A, B = "data-loader-0", "data-loader-1"
RANK = "nn-worker-0"


def begun(evaluations: int = 0) -> Coordination:
    """A job of two loaders that trains three items, with an evaluation of one item at its begin."""
    run = make_run(checkpoint={"at_end": False})
    steps = 3 * ITEM_STEPS
    job = Job("train", "run", None, 32 * steps, 32 * ITEM_STEPS, steps, evaluations, evaluation_due=bool(evaluations))
    coordination = Coordination(run, job, expected={"data-loader": 2, "nn-worker": 1})
    coordination.begin()
    return coordination


def take(job: Coordination, name: str, split: int, finished: int = 0, peer: Peer | None = None) -> list[Item]:
    peer = peer or job.peer(name)
    before = len(job.to(peer))
    job.send(peer, NextItem(job.sender(name), split, finished))
    return [each for each in job.to(peer)[before:] if isinstance(each, Item)]


def die(job: Coordination, name: str) -> int:
    """A loader dies, and a new process takes its place; return the number of steps to repeat."""
    role, _, index = name.rpartition("-")
    process = job.member(name).process
    job.send(job.peer("supervisor"), Death(role, int(index), process, -9))
    assert job.events[-1]["event"] == "died"
    job.hello(role, int(index), ProcessId(process.pid + 100))
    return sum(last - first for first, last in job.machine._work._returned[TRAIN] + job.machine._work._returned[EVAL])


def test_a_repeat_without_a_stored_answer_gets_the_same_steps() -> None:
    job = begun()
    requests = [(A, 1), (A, 1), (B, 1), (A, 1), (A, 2), (B, 1), (A, 3), (A, 3)]
    items = [take(job, name, TRAIN, peer=Peer(name.encode(), 100 + number))[0] for name, number in requests]
    assert [None if item.end else item.first // ITEM_STEPS for item in items] == [0, 0, 1, 0, 2, 1, None, None]


def test_the_unfinished_steps_of_a_dead_loader_are_assigned_first() -> None:
    job = begun()
    take(job, A, TRAIN)
    take(job, A, TRAIN, finished=ITEM_STEPS)
    assert die(job, A) == ITEM_STEPS
    assert take(job, B, TRAIN) == [Item(ITEM_STEPS, 2 * ITEM_STEPS, end=False)]


def test_a_loader_that_dies_in_training_gives_back_no_steps_of_an_evaluation() -> None:
    job = begun(evaluations=ITEM_STEPS)
    assert job.events[-1]["phase"] == "evaluating"
    take(job, A, EVAL)
    assert die(job, A) == ITEM_STEPS, "they are not evaluated yet"
    assert take(job, A, EVAL) == [Item(0, ITEM_STEPS, end=False)]
    job.send(job.peer(RANK), Done(job.sender(RANK), job.state.phases.number))
    assert job.events[-1]["phase"] == "training"
    take(job, A, TRAIN)
    assert die(job, A) == ITEM_STEPS
    assert take(job, A, EVAL) == []
