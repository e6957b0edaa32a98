"""`train.epochs=auto` stands for numbers that depend on the data set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError
from persia_cli.plan.job import JobPlan, plan_job
from persia_cli.plan.length import MAX_ROWS
from tests.support.runs import SGD, make_facts, make_run

ROWS = 100
"""Training rows: 4 steps of 32 in an epoch."""


def planned(run: Run, train_rows: int = ROWS, eval_rows: int = 20, **facts: Any) -> JobPlan:
    return plan_job(run, replace(make_facts(run, train_rows, eval_rows), **facts), "train", Path("runs/a"))


def test_a_small_data_set_is_trained_until_it_no_longer_improves() -> None:
    plan = planned(make_run())
    stop = plan.run.train.stop_early
    assert (plan.run.train.epochs, plan.job.steps, plan.run.eval.every_epochs) == (20, 80, 1)
    assert stop is not None
    assert (stop.metric, stop.patience) == ("auc_minus_log_loss", 2)
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
    assert planned(make_run(), MAX_ROWS, 20).run.train.epochs == 20


@pytest.mark.parametrize("train", [{"epochs": 3}, {"stop_early": None}, {"epochs": 3, "stop_early": None}])
def test_without_an_early_stop_all_epochs_are_trained(train: dict[str, Any]) -> None:
    plan = planned(make_run(train={"batch_size": 32} | train))
    assert (plan.run.train.stop_early, plan.job.steps) == (None, 4 * train.get("epochs", 20))
    assert (plan.run.eval.every_epochs, plan.run.checkpoint.best_by) == (1, "auc_minus_log_loss")


def test_training_past_the_early_stop_retains_the_best() -> None:
    own = {"metric": "log_loss", "patience": 1}
    for stop, metric in (("auto", "auc_minus_log_loss"), (own, "log_loss")):
        before = planned(make_run(train={"batch_size": 32, "stop_early": stop})).run
        settled = before.model_copy(update={"train": before.train.model_copy(update={"stop_early": None})})
        after = planned(settled).run
        assert (after.train.stop_early, after.checkpoint.best_by) == (None, metric)
        assert after.eval == before.eval


@pytest.mark.parametrize(
    ("rows", "train", "checkpoint"),
    [
        ((ROWS, 20), {"epochs": 1}, {}),
        ((ROWS, 20), {"steps": 9}, {}),
        ((ROWS, 0), {"epochs": 3}, {}),
        ((ROWS, 20), {"epochs": 3}, {"at_end": False}),
    ],
    ids=["one epoch", "steps", "no evaluation split", "nothing is saved"],
)
def test_no_best_is_retained_without_evaluations(
    rows: tuple[int, int], train: dict[str, Any], checkpoint: dict[str, Any]
) -> None:
    assert (
        planned(make_run(train={"batch_size": 32} | train, checkpoint=checkpoint), *rows).run.checkpoint.best_by is None
    )


def test_given_settings_are_unchanged() -> None:
    steps = planned(make_run(train={"batch_size": 32, "steps": 9}))
    assert (steps.job.steps, steps.run.train.epochs, steps.run.train.stop_early) == (9, 3, None)
    given = {"metric": "log_loss", "patience": 5}
    own = planned(make_run(train={"batch_size": 32, "stop_early": given})).run
    assert own.train.stop_early is not None
    assert (own.train.stop_early.model_dump(exclude={"min_delta"}), own.eval.every_epochs) == (given, 1)
    best = planned(make_run(checkpoint={"best_by": "ne"})).run.train.stop_early
    assert best is not None
    assert best.metric == "ne"


@pytest.mark.parametrize(
    ("given", "patience"), [({"every_steps": 1}, 8), ({"every_steps": 3}, 3), ({"every_epochs": 2}, 2)]
)
def test_evaluations_of_other_lengths_count_as_many_epochs(given: dict[str, int], patience: int) -> None:
    run = planned(make_run(eval=given)).run
    assert run.train.stop_early is not None
    assert run.train.stop_early.patience == patience
    assert run.eval.model_dump(exclude_none=True) == given


@pytest.mark.parametrize(("over", "steps"), [(9, 9), (80, 80), (500, 80)])
def test_a_schedule_with_an_end_is_the_longest_training(over: int, steps: int) -> None:
    dense = SGD | {"schedule": {"kind": "cosine", "over_steps": over}}
    assert planned(make_run(optimizer={"embedding": SGD, "dense": dense})).job.steps == steps


def test_the_metric_that_decides_is_one_that_the_loss_improves() -> None:
    def metric(losses: dict[str, Any], **dataset: Any) -> str:
        run = make_run(train={"batch_size": 32, "losses": losses}, dataset=dataset)
        stop = planned(run, tasks=len(run.links)).run.train.stop_early
        assert stop is not None
        return stop.metric

    assert metric({"click": {"kind": "mse"}}) == "rmse"
    assert metric({"click": {"kind": "bce", "pos_weight": 3}}) == "auc"
    assert metric({"click": {"kind": "pairwise"}}) == "auc"
    assert metric({"click": {"kind": "bpr"}}, group_by="user") == "gauc"
    assert metric({}, labels=["click", "buy"]) == "loss"


def test_without_evaluations_during_training_nothing_is_compared() -> None:
    with pytest.raises(ConfigError, match="best_by=auc compares evaluations"):
        planned(make_run(checkpoint={"best_by": "auc"}), MAX_ROWS + 1)
