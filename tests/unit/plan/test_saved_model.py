"""Evaluations, predictions and resumed runs accept settings of deployment and data, and no others."""

from typing import Any

import pytest
from msgspec import structs

from persia_cli.errors import CheckpointError, ConfigError
from persia_cli.plan.capacity import require_capacity
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.saved_model import require_same_training, require_saved_model
from persia_cli.store.checkpoints.manifest import SavedTable
from tests.support.runs import SGD, make_run

SAVED = make_run()
FFNN = {"kind": "ffnn", "dim": 8, "hidden": [4]}


def test_rows_that_do_not_fit_are_refused_before_the_start() -> None:
    layout = embedding_layout(make_run(embedding={"capacity": 4096}))
    rooms = {group: group.rows_per_partition * group.partitions for group in layout.groups}
    full = [
        SavedTable(table.name, group.dim, group.dtype, group.number, 0 if number else rooms[group])
        for group in layout.groups
        for number, table in enumerate(group.tables)
    ]
    require_capacity(full, layout, 1)
    more = [structs.replace(table, rows=table.rows + (not number)) for number, table in enumerate(full)]
    with pytest.raises(CheckpointError, match=r"has [\d,]+ rows of the tables that share memory \(a"):
        require_capacity(more, layout, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding": {"memory": "64MiB", "wire": "float16", "tables": {"a": {"share": 0.5, "dtype": "bfloat16"}}}},
        {"mode": {"kind": "hybrid", "staleness": 2}},
        {"train": {"batch_size": 64, "threads": 2, "precision": "bfloat16", "device": "cpu"}},
        {"cluster": {"kind": "local", "embedding_servers": 3}},
        {"dataset": {"path": "elsewhere", "labels": ["bought"], "dense": ["d2", "d3"], "split": {"kind": "eval"}}},
    ],
)
def test_settings_of_scoring_may_differ(changes: dict[str, Any]) -> None:
    require_saved_model(SAVED, make_run(**changes), "evaluating")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": FFNN | {"dim": 16}}, "model.dim=16: the saved model has 8"),
        ({"model": FFNN | {"hidden": [4, 4]}}, r"model.hidden=\[4, 4\]: the saved model has \[4\]"),
        ({"embedding": {"tables": {"a": {"dim": 4}}}}, "embedding.tables.a.dim=4: the saved model has nothing"),
        ({"seed": 5}, "seed=5: "),
        ({"train": {"batch_size": 32, "epochs": 3}}, "train.epochs=3: evaluating has no use for it"),
        ({"optimizer": {"embedding": SGD | {"lr": 2.0}, "dense": SGD}}, "optimizer.embedding.lr=2.0: evaluating has"),
        ({"checkpoint": {"at_end": False}}, "checkpoint.at_end=False: evaluating has no use for it"),
        ({"dataset": {"labels": ["click", "buy"]}}, "the saved model has 1 label, and not 2"),
        ({"sparse": ["b", "a"]}, r"reads a \(table a, pooling sum\), and not b \(table b, pooling sum\)"),
        ({"sparse": ["a", {"name": "b", "table": "a"}]}, r"reads b \(table b, pooling sum\), and not b \(table a"),
    ],
)
def test_unused_settings_are_refused_with_their_key(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        require_saved_model(SAVED, make_run(**changes), "evaluating")


def test_settings_that_the_command_drops_are_no_mistake() -> None:
    stopping = make_run(eval={"every_steps": 5}, train={"batch_size": 32, "stop_early": {"metric": "auc"}})
    plain = make_run(eval={"every_steps": 5}, train={"batch_size": 32})
    require_saved_model(stopping, plain, "predicting", ("train.stop_early",))


CLUSTER = {"kind": "local", "embedding_servers": 3}


def test_each_difference_is_a_line_with_its_key() -> None:
    saved = make_run(sparse=["a"], train={"batch_size": 32})
    changed = make_run(sparse=["a"], train={"batch_size": 64}, embedding={"tables": {"a": {"dim": 3}}})
    with pytest.raises(ConfigError) as raised:
        require_same_training(saved, changed)
    first, second = sorted(str(raised.value).splitlines())
    assert first.startswith("embedding.tables.a={dim: 3, trainable: True}: ")
    assert second.startswith("train.batch_size=64: the run was trained with 32")


def test_settings_of_place_and_duration_may_change() -> None:
    saved = make_run(sparse=["a"], train={"batch_size": 32})
    require_same_training(saved, make_run(sparse=["a"], cluster=CLUSTER, train={"batch_size": 32, "steps": 7}))
