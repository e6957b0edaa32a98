"""What the coordinator adds up of the losses of servers, and which rows it has a new process load."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from persia_cli.control.membership import Member
from persia_cli.control.phases import PhaseMachine, schedule
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.lost_memory import LostMemory
from persia_cli.wire.figures import LOST, SINCE
from persia_cli.wire.parts import ProcessId, TableTotals
from tests.support.runs import make_run

JOB = Job("train", "", None, train_rows=8000, eval_rows=0, steps=1000, eval_steps=0)
"""1,000 steps of 2 ranks and 2 servers: 4,000 updates."""
ZERO, ONE = "embedding-server-0", "embedding-server-1"


class Coordinator:
    """What the coordinator has, in the phase of training."""

    def __init__(self, lost_memory: str = "partial", limit: float = 0.1, step: int = 0) -> None:
        everyone = frozenset({ZERO, ONE, "nn-worker-0"})
        self.phases = PhaseMachine(
            schedule(1000, 0, None, 500, True),
            {"training": everyone, "saving": everyone, "done": everyone},
        )
        self.phases.advance()
        self.joining: Any = SimpleNamespace()
        self.checkpointing: Any = SimpleNamespace(newest=None, is_underway=bool)
        self.record: Any = SimpleNamespace(step=step, totals_of=lambda server: TableTotals(9, 1, 2, 3))
        run = make_run(
            sparse=["a"],
            mode={"kind": "hybrid", "staleness": 3},
            cluster={"kind": "local", "embedding_servers": 2, "nn_workers": 2},
            recovery={"lost_memory": lost_memory, "max_lost_updates": limit},
        )
        self.lost = LostMemory(
            run, JOB, self.joining, self.phases, self.checkpointing, self.record,
            cast(Any, SimpleNamespace(step=500)),
        )  # fmt: skip


def test_each_update_counts_once_though_servers_die_again() -> None:
    lost = Coordinator().lost
    assert lost.note(ONE, {"applied": 5}) is None
    assert lost.tell(ONE) == {"lost": 0}
    lost.note(ONE, {SINCE: 100, LOST: 40})
    assert lost.tell(ONE) == {"lost": 40, "loaded": 100, "lost_of_tables": {"a": 40}}
    lost.note(ONE, {SINCE: 100, LOST: 70})
    assert lost.tell(ONE)["lost"] == 30, "the same checkpoint again: 40 of these were counted"
    lost.note(ONE, {SINCE: 200, LOST: 5})
    assert lost.tell(ONE)["lost"] == 5
    lost.note(ZERO, {SINCE: 0, LOST: 7})
    assert lost.tell(ZERO)["lost"] == 7
    assert lost.note(ONE, {SINCE: 200, LOST: 318}) is None
    said = lost.note(ONE, {SINCE: 200, LOST: 324})
    assert said == (
        "with the memory of embedding-server-1 401 updates of 4,000 are lost (10.03%), "
        "more than recovery.max_lost_updates=0.1 allows; save more often, or allow more"
    )


def test_a_loss_that_is_certain_to_be_too_large_is_not_begun() -> None:
    gone = Coordinator(step=210, limit=0.1)
    gone.lost.note_death(ONE, -11)
    refusal = gone.lost.refusal(ONE)
    assert refusal is not None
    assert "414 updates of 4,000 are lost" in refusal
    gone.checkpointing.newest = ("there", 100)
    assert gone.lost.refusal(ONE) is None
    kept = Coordinator(step=900)
    kept.lost.note_death(ONE, -9)
    assert kept.lost.refusal(ONE) is None, "its memory is there"


def member(incarnation: int, role: str = "embedding-server") -> Member:
    return Member(role, 1, ProcessId(7), incarnation)


def test_a_new_process_is_told_where_the_job_is() -> None:
    here = Coordinator()
    assert here.joining.job_of(member(1)) is here.joining.job_of(member(2, "data-loader")) is JOB
    begun = here.joining.job_of(member(2))
    assert (begun.load, begun.first_step, begun.reload.finished) == (None, 0, 0)
    assert (begun.reload.is_drained, begun.reload.number, begun.reload.saved) == (False, 1, 0)
    assert (begun.reload.hits, begun.reload.misses, begun.reload.evicted) == (2, 3, 1)
    here.checkpointing.newest = ("there", 300)
    here.phases.advance()
    saving = here.joining.job_of(member(2))
    assert (saving.load, saving.first_step, saving.reload.finished, saving.reload.is_drained) == (
        "there",
        300,
        500,
        True,
    )
    assert saving.reload.saved == 0, "it has not done its part, so the new process does"
    here.phases.waiting.discard(ONE)
    assert here.joining.job_of(member(2)).reload.saved == 2
    rolled = Coordinator(lost_memory="rollback")
    assert rolled.joining.job_of(member(2)) is JOB


@pytest.mark.parametrize(
    ("writing", "expected"), [({"nn-worker-0"}, True), ({"nn-worker-0", ONE}, False), (set(), False)]
)
def test_it_waits_for_a_checkpoint_that_has_its_rows_and_not_for_itself(writing: set[str], expected: bool) -> None:
    here = Coordinator()
    here.phases.writing = writing
    assert not here.joining.must_wait(member(2)), "nobody has died"
    here.lost.note_death(ONE, -11)
    assert here.joining.must_wait(member(2)) == expected
