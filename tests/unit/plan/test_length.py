"""The length of a training: what `train.epochs=auto` stands for, and schedules that end or begin too late."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan, plan_job
from persia_cli.plan.length import MAX_ROWS, USERS, spent_schedules, unreached
from tests.support.runs import SGD, make_facts, make_run

ROWS = 100
"""Training rows: 4 steps of 32 in an epoch."""


def planned(run: Run, train_rows: int = ROWS, eval_rows: int = 20, **facts: Any) -> JobPlan:
    return plan_job(run, replace(make_facts(run, train_rows, eval_rows), **facts), "train", Path("runs/a"))


def test_a_small_data_set_is_trained_until_it_no_longer_improves() -> None:
    plan = planned(make_run())
    stop = plan.run.train.stop_early
    assert (plan.run.train.epochs, plan.job.steps, plan.run.eval.every_epochs) == (100, 400, 13)
    assert (stop.metric, stop.patience) == ("auc", 10), "500 steps"
    again = planned(plan.run)
    assert (again.run, again.job) == (plan.run, plan.job), "the settled configuration means the same"


@pytest.mark.parametrize(
    ("rows", "facts"),
    [((MAX_ROWS + 1, 20), {}), ((ROWS, 0), {}), ((ROWS, 20), {"stand_in": True})],
    ids=["large", "no evaluation split", "made up"],
)
def test_other_data_is_read_once(rows: tuple[int, int], facts: dict[str, Any]) -> None:
    train = planned(make_run(), *rows, **facts).run.train
    assert (train.epochs, train.stop_early) == (1, None)
    assert planned(make_run(), MAX_ROWS, 20).run.train.epochs == 10


@pytest.mark.parametrize(
    ("rows", "every", "patience"),
    [
        (32 * 49, {"every_epochs": 2}, 6),
        (32 * 50, {"every_epochs": 1}, 10),
        (32 * 199, {"every_epochs": 1}, 5),
        (32 * 400, {"every_steps": 200}, 5),
        (32 * 1001, {"every_steps": 501}, 5),
    ],
)
def test_evaluations_are_as_frequent_as_is_useful(rows: int, every: dict[str, int], patience: int) -> None:
    run = planned(make_run(), rows).run
    assert run.eval.model_dump(exclude_none=True, exclude={"next"}) == every
    assert run.train.stop_early.patience == patience, "two epochs, five evaluations and 500 steps, whichever is most"


@pytest.mark.parametrize("train", [{"epochs": 3}, {"stop_early": None}, {"epochs": 3, "stop_early": None}])
def test_without_an_early_stop_all_epochs_are_trained(train: dict[str, Any]) -> None:
    plan = planned(make_run(train={"batch_size": 32} | train))
    assert (plan.run.train.stop_early, plan.job.steps) == (None, 4 * train.get("epochs", 100))
    assert plan.run.eval.every_epochs == (1 if "epochs" in train else 13)
    assert plan.run.checkpoint.best_by == "auc"


def test_training_past_the_early_stop_retains_the_best() -> None:
    own = {"metric": "log_loss", "patience": 1}
    for stop, metric in (("auto", "auc"), (own, "log_loss")):
        before = planned(make_run(train={"batch_size": 32, "stop_early": stop})).run
        settled = before.model_copy(update={"train": before.train.model_copy(update={"stop_early": None})})
        after = planned(settled).run
        assert (after.train.stop_early, after.checkpoint.best_by) == (None, metric)
        assert after.eval == before.eval


@pytest.mark.parametrize(
    ("eval_rows", "changes"),
    [
        (20, {"train": {"epochs": 1}}),
        (20, {"train": {"steps": 9}}),
        (0, {"train": {"epochs": 3}}),
        (20, {"train": {"epochs": 3}, "checkpoint": {"at_end": False}}),
    ],
    ids=["one epoch", "steps", "no evaluation split", "nothing is saved"],
)
def test_no_best_is_retained_without_evaluations(eval_rows: int, changes: dict[str, Any]) -> None:
    train = {"batch_size": 32} | changes["train"]
    run = planned(make_run(**changes | {"train": train}), eval_rows=eval_rows).run
    assert run.checkpoint.best_by is None


def test_given_settings_are_unchanged() -> None:
    steps = planned(make_run(train={"batch_size": 32, "steps": 9}))
    assert (steps.job.steps, steps.run.train.epochs, steps.run.train.stop_early) == (9, 3, None)
    given = {"metric": "log_loss", "patience": 5}
    own = planned(make_run(train={"batch_size": 32, "stop_early": given})).run
    assert (own.train.stop_early.model_dump(exclude={"min_delta"}), own.eval.every_epochs) == (given, 13)
    best = planned(make_run(checkpoint={"best_by": "ne"})).run.train.stop_early
    assert best.metric == "ne"


@pytest.mark.parametrize(
    ("given", "patience"), [({"every_steps": 1}, 500), ({"every_steps": 60}, 9), ({"every_epochs": 200}, 5)]
)
def test_evaluations_of_other_lengths_count_as_many_epochs(given: dict[str, int], patience: int) -> None:
    run = planned(make_run(eval=given)).run
    assert run.train.stop_early.patience == patience
    assert run.eval.model_dump(exclude_none=True, exclude={"next"}) == given


@pytest.mark.parametrize(("over", "steps"), [(9, 9), (80, 80), (500, 400)])
def test_a_schedule_with_an_end_is_the_longest_training(over: int, steps: int) -> None:
    dense = SGD | {"schedule": {"kind": "cosine", "over_steps": over}}
    assert planned(make_run(optimizer={"embedding": SGD, "dense": dense})).job.steps == steps


def test_the_metric_that_decides_is_one_that_the_loss_improves() -> None:
    def metric(losses: dict[str, Any], **dataset: Any) -> str:
        run = make_run(train={"batch_size": 32, "losses": losses}, dataset=dataset)
        stop = planned(run, tasks=len(run.links)).run.train.stop_early
        return stop.metric

    assert metric({"click": {"kind": "mse"}}) == "rmse"
    assert metric({"click": {"kind": "bce", "pos_weight": 3}}) == "auc"
    assert metric({"click": {"kind": "pairwise"}}) == "auc"
    assert metric({"click": {"kind": "bpr"}}, group_by="user") == "gauc"
    assert metric({}, labels=["click", "buy"]) == "auc", "the mean of both"
    assert metric({"buy": {"kind": "mse"}}, labels=["click", "buy"]) == "loss"


def test_a_retrieval_loss_is_judged_by_the_lists_of_some_users() -> None:
    def of(run_changes: dict[str, Any] | None = None, **facts: Any) -> tuple[Any, ...]:
        train = {"batch_size": 32, "losses": {"click": {"kind": "in_batch_softmax"}}}
        towers = {"kind": "two_tower", "dim": 8, "hidden": [4], "width": 4, "user": ["a"], "item": ["b"]}
        run = planned(make_run(**({"model": towers, "train": train} | (run_changes or {}))), **facts).run
        return run.judging_metric, run.checkpoint.best_by, run.eval.retrieval, run.eval.users

    assert of() == ("recall@10", "recall@10", (10,), USERS)
    assert of({"eval": {"users": 50}}) == ("recall@10", "recall@10", (10,), 50)
    assert of({"eval": {"retrieval": [50, 20]}}) == ("recall@20", "recall@20", (20, 50), None)
    assert of({"eval": {"retrieval": None}}) == ("loss", "loss", None, None)
    assert of({"checkpoint": {"best_by": "loss"}}) == ("loss", "loss", None, None)
    assert of(train_rows=MAX_ROWS + 1) == ("loss", None, None, None), "one pass compares nothing"


@pytest.mark.parametrize("train", [{}, {"steps": 9}, {"epochs": 1}])
def test_sampled_next_items_are_never_judged_by_their_loss(train: dict[str, Any]) -> None:
    """Its evaluation depends on batches and ranks."""
    read = ["item", {"name": "last", "table": "item", "pooling": "none", "max_length": 3}]
    model = {"kind": "sasrec", "dim": 8, "attend": {"item": ["last"]}, "layers": 1, "heads": 1}
    train = {"batch_size": 32, "losses": {"click": {"kind": "sampled_softmax"}}} | train
    data = {"model": model, "train": train, "sparse": read, "dataset": {"dense": []}}
    run = planned(make_run(**data)).run
    assert (run.judging_metric, run.eval.retrieval, run.eval.users) == ("recall@10", (10,), USERS)
    assert run.checkpoint.best_by == (None if train.keys() & {"steps", "epochs"} else "recall@10")
    off = planned(make_run(**data, eval={"retrieval": None})).run
    assert (off.judging_metric, off.eval.lists) == ("loss", ()), "unless the ranking is off"


def test_without_evaluations_during_training_nothing_is_compared() -> None:
    with pytest.raises(ConfigError, match="best_by=auc compares evaluations"):
        planned(make_run(checkpoint={"best_by": "auc"}), MAX_ROWS + 1)


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
    assert [told.partition(" of 1,000: ")[0] for told in spent_schedules(run, 1000)] == [
        "optimizer.dense.schedule.kind=one_cycle is over at step 80",
        "optimizer.embedding.schedule.kind=cosine is over at step 85",
        "embedding.tables.a.optimizer.schedule.kind=one_cycle is over at step 80",
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
    assert unreached(make_run(eval={"every_steps": 50}), 50, 50) == []
    for own, steps, every in (("eval.every_steps=50", 50, 50), ("eval.every_epochs=3", 30, 45)):
        key, _, value = own.removeprefix("eval.").partition("=")
        [told] = unreached(make_run(train=train, eval={key: int(value)}), steps, every)
        assert f"with {own} the only one is that at the end, at step {steps};" in told
