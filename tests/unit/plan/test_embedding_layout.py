"""The embedding layout of a run: tables that share a store, their settings, and the features that read them."""

from typing import Any

import pytest
from hypothesis import given

from persia_cli.errors import ConfigError
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.layout import RowOptimizer, Schedule, partitions_for, table_salt
from tests.support.runs import SGD, make_run
from tests.unit.plan.settings import COSINE, ROWS, STEP, TABLES


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        *((settings, RowOptimizer(**settings)) for settings in ROWS),
        (SGD | {"schedule": STEP}, RowOptimizer("sgd", lr=0.1, schedule=Schedule("step", 3, 5, 0.25))),
        (
            SGD | {"schedule": COSINE},
            RowOptimizer("sgd", 0.1, schedule=Schedule("cosine", 4, over_steps=50, floor=0.125)),
        ),
    ],
)
def test_every_setting_of_an_optimizer_arrives(settings: dict[str, Any], plain: RowOptimizer) -> None:
    run = make_run(optimizer={"embedding": settings, "dense": SGD | {"lr": 9.0}})
    assert [group.optimizer for group in embedding_layout(run).groups] == [plain]
    own = make_run(["a"], embedding={"tables": {"a": {"optimizer": settings}}})
    assert [group.optimizer for group in embedding_layout(own).groups] == [plain]


def test_bounds_of_gradients_and_weights_are_everyones_or_a_tables_own() -> None:
    tables = {"b": {"clip_norm": 3.0}, "c": {"weight_bound": 4.0}, "d": {"clip_norm": 1.0, "weight_bound": 2.0}}
    embedding = {"clip_norm": 1.0, "weight_bound": 2.0, "tables": tables}
    run = make_run(["a", "b", "c", "d"], embedding=embedding)
    found = [
        ([table.name for table in group.tables], group.optimizer.clip_norm, group.optimizer.weight_bound)
        for group in embedding_layout(run).groups
    ]
    assert found == [(["a", "d"], 1.0, 2.0), (["b"], 3.0, 2.0), (["c"], 1.0, 4.0)]


def test_settings_of_new_rows_are_everyones_or_a_tables_own() -> None:
    tables = {"b": {"admission": 0.25, "init_bound": 0.0}, "c": {"hash_stack": {"rounds": 2, "size": 10}}}
    embedding = {"admission": 0.5, "init_bound": 0.5, "tables": tables}
    (group,) = embedding_layout(make_run(["a", "b", "c"], embedding=embedding)).groups
    assert [table.admission for table in group.tables] == [0.5, 0.25, 1.0]
    assert [table.init_bound for table in group.tables] == [0.5, 0.0, 0.5]
    assert [(table.rounds, table.size) for table in group.tables] == [(0, 0), (0, 0), (2, 10)]


def test_servers_and_workers_get_the_same_settings() -> None:
    layout = embedding_layout(make_run(embedding={"wire": "float16", "when_full": "refuse"}, seed=5))
    assert (layout.groups[0].wire, layout.when_full, layout.seed) == ("float16", "refuse", 5)
    plain = embedding_layout(make_run())
    assert (plain.groups[0].wire, plain.when_full, plain.groups[0].dtype) == ("float32", "auto", "float32")


def test_groups_are_placed_by_as_many_partitions_as_their_rows_fill() -> None:
    tables = {"b": {"dim": 4, "share": 0.5}, "c": {"dim": 2, "share": 0.001}}
    embedding = {"capacity": 2_000_000, "num_partitions": 128, "tables": tables}
    layout = embedding_layout(make_run(["a", "b", "c"], embedding=embedding))
    assert [(group.capacity, group.partitions) for group in layout.groups] == [
        (998_000 // 128 * 128, 128),
        (10**6 // 128 * 128, 128),
        (2000, 1),
    ]
    assert [partitions_for(group.capacity, 4096) for group in layout.groups] == [256, 256, 1]


def test_features_that_name_one_table_share_it() -> None:
    sparse = [{"name": "bought", "table": "item"}, "user", {"name": "seen", "table": "item", "pooling": "mean"}]
    layout = embedding_layout(make_run(sparse, embedding={"tables": {"item": {"dim": 4}}}))
    assert [(table.name, table.number) for table in layout.tables()] == [("item", 0), ("user", 1)]
    assert [(feature.name, feature.table) for feature in layout.features] == [("bought", 0), ("user", 1), ("seen", 0)]
    assert layout.features_of(0) == (0, 2)
    assert layout.features_of(1) == (1,)


def test_features_have_their_order_pooling_and_length() -> None:
    sparse = ["z", {"name": "history", "pooling": "none", "max_length": 7}, {"name": "a", "pooling": "sqrtn"}]
    layout = embedding_layout(make_run(sparse))
    assert [(f.name, f.pooling, f.max_length) for f in layout.features] == [
        ("z", "sum", None),
        ("history", "none", 7),
        ("a", "sqrtn", None),
    ]


def test_a_salt_is_of_the_name_alone() -> None:
    alone = embedding_layout(make_run(["b"])).tables()
    among = embedding_layout(make_run(["a", "b"], embedding={"tables": {"b": {"dim": 4}}})).tables()
    assert alone[0].salt == among[1].salt == table_salt("b")


def test_settings_of_an_unused_table_are_refused() -> None:
    sparse = ["user", {"name": "bought", "table": "item"}]
    run = make_run(sparse, embedding={"tables": {"user": {"dim": 4}, "bought": {"dim": 4}}})
    with pytest.raises(ConfigError, match=r"embedding.tables.bought: no sparse feature .* there are user, item"):
        embedding_layout(run)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"])
def test_int8_rows_have_a_row_wise_optimizer(kind: str) -> None:
    settings = next(each for each in ROWS if each["kind"] == kind)
    everyones = {"embedding": {"dtype": "int8"}, "optimizer": {"embedding": settings, "dense": SGD}}
    own = {"embedding": {"tables": {"a": {"dtype": "int8", "optimizer": settings}}}}
    for changes, where in ((everyones, "optimizer.embedding"), (own, "embedding.tables.a.optimizer")):
        run = make_run(["a"], **changes)
        if kind.startswith("rowwise"):
            assert [group.dtype for group in embedding_layout(run).groups] == ["int8"]
            continue
        with pytest.raises(
            ConfigError, match=rf"^{where}.kind={kind} .*dtype=int8; .* rowwise_adagrad or rowwise_adam"
        ):
            embedding_layout(run)
    frozen = {"dtype": "int8", "tables": {"a": {"trainable": False}}}
    run = make_run(["a"], embedding=frozen, optimizer={"embedding": settings, "dense": SGD})
    assert [group.dtype for group in embedding_layout(run).groups] == ["int8"]


@given(TABLES)
def test_every_table_is_in_the_group_of_its_settings(tables: dict[str, Any]) -> None:
    layout = embedding_layout(make_run(list(tables), embedding={"tables": tables}))
    assert [table.name for table in layout.tables()] == list(tables)
    for group in layout.groups:
        for table in group.tables:
            own = tables[table.name]
            assert (group.dim, group.dtype) == (own.get("dim", 8), own.get("dtype", "float32"))
            assert group.optimizer.kind == own.get("optimizer", SGD)["kind"]
            assert group.optimizer.clip_norm == own.get("clip_norm")
    assert len({(group.dim, group.dtype, group.optimizer) for group in layout.groups}) == len(layout.groups)
