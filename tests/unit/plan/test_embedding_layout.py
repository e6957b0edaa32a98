"""The embedding layout of a run: which tables share a store, who reads them, and how many rows they may hold."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.config.schema import GeneratedDataset, Run
from persia_cli.errors import ConfigError
from persia_cli.plan.columns import dense_count, label_names, sparse_features
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.layout import EmbeddingLayout, RowOptimizer, bytes_per_row, table_salt
from tests.support.runs import SGD, make_run

ADAM = {"kind": "adam", "lr": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
ADAGRAD = {"kind": "adagrad", "lr": 0.05, "initial_accumulator_value": 0.2, "eps": 1e-9}


def groups_of(run: Run) -> list[tuple[int, str, list[str]]]:
    """The groups of a run as (dim, optimizer kind, table names)."""
    return [
        (group.dim, group.optimizer.kind, [table.name for table in group.tables])
        for group in embedding_layout(run).groups
    ]


def test_tables_of_equal_dim_and_optimizer_share_a_group() -> None:
    tables = {"b": {"dim": 4}, "c": {"optimizer": ADAM}, "d": {"dim": 8, "optimizer": SGD}, "e": {"dim": 4}}
    run = make_run(["a", "b", "c", "d", "e"], embedding={"tables": tables})
    assert groups_of(run) == [(8, "sgd", ["a", "d"]), (4, "sgd", ["b", "e"]), (8, "adam", ["c"])]


def test_optimizers_of_other_settings_are_other_groups() -> None:
    run = make_run(["a", "b"], embedding={"tables": {"b": {"optimizer": SGD | {"lr": 0.2}}}})
    assert groups_of(run) == [(8, "sgd", ["a"]), (8, "sgd", ["b"])]


def test_initial_bounds_are_a_tables_own_and_split_no_group() -> None:
    run = make_run(["a", "b"], embedding={"init_bound": 0.5, "tables": {"b": {"init_bound": 0.0}}})
    (group,) = embedding_layout(run).groups
    assert [table.init_bound for table in group.tables] == [0.5, 0.0]


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        (SGD, RowOptimizer("sgd", lr=0.1)),
        (ADAGRAD, RowOptimizer("adagrad", lr=0.05, initial_accumulator_value=0.2, eps=1e-9)),
        (ADAM, RowOptimizer("adam", lr=0.01, eps=1e-6, beta1=0.8, beta2=0.99)),
    ],
)
def test_every_setting_of_an_optimizer_arrives(settings: dict[str, Any], plain: RowOptimizer) -> None:
    run = make_run(optimizer={"embedding": settings, "dense": SGD | {"lr": 9.0}})
    assert [group.optimizer for group in embedding_layout(run).groups] == [plain]


def test_features_that_name_one_table_share_it() -> None:
    sparse = [{"name": "bought", "table": "item"}, "user", {"name": "seen", "table": "item", "pooling": "mean"}]
    layout = embedding_layout(make_run(sparse, embedding={"tables": {"item": {"dim": 4}}}))
    assert [(table.name, table.number) for table in layout.tables()] == [("item", 0), ("user", 1)]
    assert [(feature.name, feature.table) for feature in layout.features] == [("bought", 0), ("user", 1), ("seen", 0)]
    assert layout.features_of(0) == (0, 2)
    assert layout.features_of(1) == (1,)


def test_a_feature_may_read_the_table_of_another() -> None:
    layout = embedding_layout(make_run([{"name": "last", "table": "item"}, "item"]))
    assert [table.name for table in layout.tables()] == ["item"]
    assert [feature.table for feature in layout.features] == [0, 0]


def test_features_keep_their_order_pooling_and_length() -> None:
    sparse = ["z", {"name": "history", "pooling": "none", "max_length": 7}, {"name": "a", "pooling": "sqrtn"}]
    run = make_run(sparse, embedding={"num_partitions": 64}, seed=5)
    layout = embedding_layout(run)
    assert [(f.name, f.pooling, f.max_length) for f in layout.features] == [
        ("z", "sum", None),
        ("history", "none", 7),
        ("a", "sqrtn", None),
    ]
    assert (layout.num_partitions, layout.seed) == (64, 5)


def test_a_salt_is_of_the_name_alone() -> None:
    alone = embedding_layout(make_run(["b"])).tables()
    among = embedding_layout(make_run(["a", "b"], embedding={"tables": {"b": {"dim": 4}}})).tables()
    assert alone[0].salt == among[1].salt == table_salt("b")


def test_settings_of_a_table_that_nobody_reads_are_refused() -> None:
    sparse = ["user", {"name": "bought", "table": "item"}]
    run = make_run(sparse, embedding={"tables": {"user": {"dim": 4}, "bought": {"dim": 4}}})
    with pytest.raises(ConfigError, match=r"embedding.tables.bought: no sparse feature .* there are user, item"):
        embedding_layout(run)


TABLE = st.fixed_dictionaries(
    {}, optional={"dim": st.integers(1, 64), "optimizer": st.sampled_from([SGD, ADAGRAD, ADAM])}
)
TABLES = st.dictionaries(st.sampled_from([f"t{i}" for i in range(12)]), TABLE, min_size=1)


def taken(layout: EmbeddingLayout, more_per_table: int = 0) -> float:
    """Bytes of all rows, were there so many more in each table."""
    return sum(
        (group.capacity + more_per_table * len(group.tables)) * bytes_per_row(group.dim, group.optimizer.kind)
        for group in layout.groups
    )


@given(TABLES, st.integers(2**16, 2**45))
def test_tables_take_the_memory_they_are_given_and_not_more(tables: dict[str, Any], memory: int) -> None:
    layout = embedding_layout(make_run(list(tables), embedding={"memory": memory, "tables": tables}))
    assert taken(layout) <= memory < taken(layout, more_per_table=1)
    assert len({group.capacity / len(group.tables) for group in layout.groups}) == 1


@given(TABLES, st.integers(12, 2**40))
def test_tables_hold_the_rows_they_are_given_and_not_more(tables: dict[str, Any], capacity: int) -> None:
    embedding = {"memory": 1, "capacity": capacity, "tables": tables}
    layout = embedding_layout(make_run(list(tables), embedding=embedding))
    rows = sum(group.capacity for group in layout.groups)
    assert rows <= capacity < rows + len(tables)
    assert len({group.capacity / len(group.tables) for group in layout.groups}) == 1


@given(TABLES)
def test_every_table_is_in_the_group_of_its_settings(tables: dict[str, Any]) -> None:
    layout = embedding_layout(make_run(list(tables), embedding={"tables": tables}))
    assert [table.name for table in layout.tables()] == list(tables)
    for group in layout.groups:
        for table in group.tables:
            own = tables[table.name]
            assert (group.dim, group.optimizer.kind) == (own.get("dim", 8), own.get("optimizer", SGD)["kind"])
    assert len({(group.dim, group.optimizer) for group in layout.groups}) == len(layout.groups)


@pytest.mark.parametrize(
    ("embedding", "told"),
    [
        (
            {"memory": 100},
            "embedding.memory=100 has no room for one row of each of the 2 tables; give embedding.memory",
        ),
        ({"capacity": 1}, "embedding.capacity=1 has no room for one row of each of the 2 tables"),
    ],
)
def test_a_budget_below_one_row_of_each_table_is_refused(embedding: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        embedding_layout(make_run(["a", "b"], embedding=embedding))


def test_a_run_without_sparse_features_has_no_tables() -> None:
    layout = embedding_layout(make_run([]))
    assert (layout.groups, layout.features) == ((), ())


def test_the_columns_of_a_run() -> None:
    run = make_run(["a", {"name": "b", "column": "x"}], dataset={"labels": ["click", "buy"]})
    assert [feature.name for feature in sparse_features(run)] == ["a", "b"]
    assert dense_count(run) == 2
    assert label_names(run) == ("click", "buy")


def test_the_columns_of_generated_samples() -> None:
    generator = {"train_rows": 10, "eval_rows": 5, "dense": 3, "cardinalities": [10, 20]}
    dataset = GeneratedDataset.model_validate({"kind": "generated", "generator": generator})
    run = make_run().model_copy(update={"dataset": dataset})
    assert [feature.name for feature in sparse_features(run)] == ["feature_0", "feature_1"]
    assert (dense_count(run), label_names(run)) == (3, ("label",))
    assert [table.name for table in embedding_layout(run).tables()] == ["feature_0", "feature_1"]
