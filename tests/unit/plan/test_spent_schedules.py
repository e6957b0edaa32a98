"""Learning rates that are next to 0 for much of a training are told of before it begins."""

import pytest

from persia_cli.plan.spent_schedules import spent_schedules
from tests.support.runs import SGD, make_run

CYCLE = {"kind": "one_cycle", "over_steps": 80}


@pytest.mark.parametrize(
    ("schedule", "steps", "told"),
    [
        (CYCLE, 80, False),
        (CYCLE, 88, False),
        (CYCLE, 160, True),
        (CYCLE | {"floor": 0.1}, 160, False),
        ({"kind": "cosine", "over_steps": 80, "warmup_steps": 60}, 150, False),
        ({"kind": "cosine", "over_steps": 80, "warmup_steps": 60}, 160, True),
        ({"kind": "step", "every_steps": 1, "factor": 0.1}, 160, False),
    ],
)
def test_a_schedule_that_is_over_before_its_time(schedule: dict[str, object], steps: int, told: bool) -> None:
    run = make_run(optimizer={"embedding": SGD, "dense": SGD | {"schedule": schedule}})
    assert len(spent_schedules(run, steps)) == told


def test_each_one_is_named() -> None:
    own = {"a": {"optimizer": SGD | {"schedule": CYCLE}}}
    rows = SGD | {"schedule": {"kind": "cosine", "over_steps": 80, "warmup_steps": 5}}
    run = make_run(optimizer={"embedding": rows, "dense": SGD | {"schedule": CYCLE}}, embedding={"tables": own})
    assert spent_schedules(run, 1000) == [
        "optimizer.dense.schedule.kind=one_cycle is over at step 80 of 1,000: the learning rate stays at 4e-06 of its "
        "value from there on; raise optimizer.dense.schedule.over_steps, or lower train.steps",
        "optimizer.embedding.schedule.kind=cosine is over at step 85 of 1,000: the learning rate stays at 0 of its "
        "value from there on; raise optimizer.embedding.schedule.over_steps, or lower train.steps",
        "embedding.tables.a.optimizer.schedule.kind=one_cycle is over at step 80 of 1,000: the learning rate stays at "
        "4e-06 of its value from there on; raise embedding.tables.a.optimizer.schedule.over_steps, or lower "
        "train.steps",
    ]
