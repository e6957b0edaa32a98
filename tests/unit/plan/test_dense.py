"""Dense weights in a plan: their memory, and their reserved table in asynchronous training."""

from pathlib import Path
from typing import Any

import pytest
import torch

from persia_cli.config.schema import Run
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.errors import ConfigError
from persia_cli.plan.dense import DIM, MAX_WEIGHTS, dense_bytes, require_space
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import plan_job
from persia_cli.store.layout import RowOptimizer, Schedule
from persia_cli.training.optimizer import dense_optimizer
from tests.support.runs import SGD, make_facts, make_run

ASYNC = {"kind": "async"}


@pytest.mark.parametrize("kind", ["sync", "hybrid"])
def test_in_other_modes_nn_workers_have_the_dense_weights(kind: str) -> None:
    layout = embedding_layout(make_run(mode={"kind": kind}))
    assert layout.dense_group is None
    assert layout.feature_groups == layout.groups


def test_dense_weights_are_the_last_group_and_travel_whole() -> None:
    tables = {"b": {"dim": 4}}
    embedding = {"wire": "float16", "dtype": "bfloat16", "init_bound": 0.5, "clip_norm": 1.0, "tables": tables}
    layout = embedding_layout(make_run(mode=ASYNC, embedding=embedding))
    dense = layout.dense_group
    assert layout.groups == (*layout.feature_groups, dense)
    assert [table.name for table in layout.tables()] == ["a", "b", DENSE_TABLE]
    assert [(group.wire, group.dtype) for group in layout.groups] == [("float16", "bfloat16")] * 2 + [("float32",) * 2]
    assert (dense.number, dense.dim, dense.tables[0].init_bound, dense.tables[0].admission) == (2, DIM, 0.0, 1.0)
    assert layout.features_of(2) == ()


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        ({"kind": "sgd", "lr": 0.1, "l2": 0.01}, RowOptimizer("sgd", 0.1, each_step=2)),
        (
            {"kind": "adam", "lr": 0.1, "beta1": 0.5, "eps": 1e-6, "schedule": {"kind": "cosine", "over_steps": 10}},
            RowOptimizer(
                "adam", 0.1, beta1=0.5, eps=1e-6, schedule=Schedule("cosine", over_steps=10, floor=0.0), each_step=2
            ),
        ),
    ],
)
def test_its_optimizer_is_the_dense_one_without_decay(dense: dict[str, Any], expected: RowOptimizer) -> None:
    cluster = {"kind": "local", "nn_workers": 2}
    optimizers = {"embedding": SGD, "dense": dense}
    group = embedding_layout(make_run(mode=ASYNC, optimizer=optimizers, cluster=cluster)).dense_group
    assert group.optimizer == expected


def test_the_budget_of_the_tables_is_as_without_it() -> None:
    hybrid, shared = make_run(mode={"kind": "hybrid"}), make_run(mode=ASYNC)
    plans = [plan_job(run, make_facts(run, 100, 0), "train", Path("run")) for run in (hybrid, shared)]
    assert plans[0].memory == plans[1].memory
    assert plans[0].layout.groups == plans[1].layout.feature_groups


def test_no_feature_may_have_its_name() -> None:
    for kind in ("async", "hybrid"):
        with pytest.raises(ConfigError, match=r"a table cannot be called \(dense\)"):
            embedding_layout(make_run(sparse=["a", DENSE_TABLE], mode={"kind": kind}))


def test_more_weights_than_fit_are_refused() -> None:
    require_space(MAX_WEIGHTS)
    with pytest.raises(ConfigError, match=r"67,108,865 dense weights.* mode\.kind=async"):
        require_space(MAX_WEIGHTS + 1)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam", "adamw"])
def test_it_is_that_of_weights_gradients_and_the_state_of_their_optimizer(kind: str) -> None:
    run: Run = make_run(optimizer={"embedding": SGD, "dense": {"kind": kind, "lr": 0.1}})
    network = torch.nn.Linear(30, 20)
    optimizer = dense_optimizer(run.optimizer.dense, network)
    network(torch.ones(2, 30)).sum().backward()
    optimizer.step()
    weights = list(network.parameters())
    kept = [value for each in optimizer.state.values() for value in each.values() if value.ndim]
    taken = sum(value.nbytes for value in [*weights, *(weight.grad for weight in weights), *kept])
    assert dense_bytes(run.optimizer.dense, sum(weight.numel() for weight in weights)) == taken
