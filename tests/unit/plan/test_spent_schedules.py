"""A plan reports learning rates that are next to 0 for much of a training."""

import pytest

from persia_cli.plan.spent_schedules import spent_schedules, unreached
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


@pytest.mark.parametrize(
    ("schedule", "steps", "told"),
    [
        (CYCLE, 24, "schedule.over_steps=80: the learning rate rises for 24 steps, and the training has 24, so"),
        (CYCLE, 25, None),
        ({"kind": "constant", "warmup_steps": 9}, 9, "schedule.warmup_steps=9: the learning rate rises for 9 steps"),
        ({"kind": "constant", "warmup_steps": 9}, 10, None),
        ({"kind": "constant"}, 1, None),
        ({"kind": "cosine", "over_steps": 80}, 10, None),
    ],
)
def test_a_learning_rate_that_never_has_its_value(schedule: dict[str, object], steps: int, told: str | None) -> None:
    run = make_run(optimizer={"embedding": SGD, "dense": SGD | {"schedule": schedule}})
    found = unreached(run, steps, None)
    assert len(found) == (told is not None)
    assert all(each.startswith(f"optimizer.dense.{told}") for each in found)


def test_evaluations_that_come_too_late_to_be_compared() -> None:
    train = {"batch_size": 32, "stop_early": {"metric": "auc"}}
    run = make_run(train=train, eval={"every_steps": 50})
    assert unreached(run, 51, 50) == []
    assert unreached(run, 50, 50) == [
        "train.stop_early.metric compares evaluations, and with eval.every_steps=50 the only one is that at the end, "
        "at step 50; lower eval.every_steps"
    ]
    assert unreached(make_run(eval={"every_steps": 50}), 50, 50) == []
    [told] = unreached(make_run(train=train, eval={"every_epochs": 3}), 30, 45)
    assert told.endswith(
        "with eval.every_epochs=3 the only one is that at the end, at step 30; lower eval.every_epochs"
    )
