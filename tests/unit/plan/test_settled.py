"""The values that `auto` stands for, by the number of training rows, and that they are allowed wherever they land."""

from pathlib import Path
from typing import Any

import pytest

from persia_cli.config.schema import Run
from persia_cli.errors import ConfigError
from persia_cli.plan.job import plan_job
from persia_cli.plan.settled import settled, settled_as
from tests.support.runs import SGD, make_facts, make_run

SMALL, LARGE = 999_999, 1_000_000
OPEN: dict[str, Any] = {
    "model": {"kind": "ffnn", "dim": 8, "hidden": [4]},
    "train": {"batch_size": "auto"},
    "optimizer": {"embedding": {"kind": "adagrad", "lr": "auto"}, "dense": SGD},
}
"""Changes of a run by which nothing is given that follows the data."""


def planned(rows: int = SMALL, **changes: Any) -> Run:
    run = make_run(**OPEN | changes)
    return plan_job(run, make_facts(run, rows, 20), "train", Path("runs/a")).run


def test_small_data_has_dropout() -> None:
    run = planned()
    assert run.model.dropout == 0.2
    assert planned(LARGE).model.dropout == 0.0
    assert planned_again(run) == run, "the settled configuration means the same"


def planned_again(run: Run) -> Run:
    return plan_job(run, make_facts(run, SMALL, 20), "train", Path("runs/a")).run


@pytest.mark.parametrize(
    ("rows", "batch", "ranks", "parts"),
    [(1, 128, 1, 1), (51_199, 128, 1, 1), (51_200, 256, 1, 1), (10**8, 256, 1, 1), (1, 132, 3, 4)],
)
def test_few_rows_have_small_batches(rows: int, batch: int, ranks: int, parts: int) -> None:
    train = {"batch_size": "auto", "accumulate": parts}
    assert planned(rows, train=train, cluster={"kind": "local", "nn_workers": ranks}).train.batch_size == batch


def test_a_saved_batch_that_ranks_cannot_share_is_refused() -> None:
    saved = planned(cluster={"kind": "local", "nn_workers": 2})
    continued = make_run(**OPEN | {"cluster": {"kind": "local", "nn_workers": 2}})
    assert settled_as(continued, saved).train.batch_size == 256
    with pytest.raises(ConfigError, match=r"train\.batch_size=256 is not a multiple of cluster\.nn_workers=3"):
        settled_as(make_run(**OPEN | {"cluster": {"kind": "local", "nn_workers": 3}}), saved)


def test_rows_of_tables_have_the_rate_of_their_optimizer() -> None:
    own = {"a": {"optimizer": {"kind": "adam", "lr": "auto"}}}
    run = planned(embedding={"tables": own})
    assert (run.optimizer.embedding.lr, run.embedding.tables["a"].optimizer.lr) == (0.05, 0.001)
    assert planned(99_999).optimizer.embedding.lr == 0.02


def test_given_values_stay() -> None:
    given: dict[str, Any] = {
        "model": {"kind": "ffnn", "dim": 8, "hidden": [4], "norm": "layer", "dropout": 0.0},
        "train": {"batch_size": 7, "epochs": 1},
        "optimizer": {"embedding": {"kind": "adagrad", "lr": 1.0}, "dense": SGD},
    }
    run = make_run(**given)
    assert settled(run, make_facts(run, SMALL, 20)) is run


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "ffnn", "dim": 8, "hidden": []},
        {"kind": "two_tower", "dim": 8, "hidden": [4], "width": 4, "user": ["a"], "item": ["b"]},
    ],
    ids=["no layers", "towers"],
)
def test_nothing_is_dropped_where_that_is_refused_or_harms(model: dict[str, Any]) -> None:
    assert planned(model=model).model.dropout == 0.0


def test_made_up_samples_need_no_regularisation() -> None:
    made = {"train_rows": 1000, "eval_rows": 10, "dense": 2, "cardinalities": [5, 5]}
    run = Run.model_validate(
        make_run(**OPEN).model_dump(mode="json") | {"dataset": {"kind": "generated", "generator": made}}
    )
    assert settled(run, make_facts(run, 1000, 10)).model.dropout == 0.0


def test_settled_values_are_checked_against_the_others() -> None:
    rows = {"kind": "sgd", "lr": "auto", "l2": 20.0}
    with pytest.raises(ConfigError, match=r"l2=20 times lr=0\.1 is above 1"):
        planned(optimizer={"embedding": rows, "dense": SGD})
