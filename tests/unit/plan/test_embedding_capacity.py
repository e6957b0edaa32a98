"""The rows of each table: equal parts of the budget, but for shares and for hash stacks that need less."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.errors import ConfigError
from persia_cli.plan.embedding import embedding_layout, group_rows, table_rows
from persia_cli.store.layout import SLOTS, EmbeddingLayout, GroupSpec, bytes_per_row, partitions_for
from tests.support.runs import make_run
from tests.unit.plan.settings import NAMES, TABLES

SHARES = st.dictionaries(NAMES, st.floats(0.01, 0.08))
STACKS = st.dictionaries(NAMES, st.fixed_dictionaries({"rounds": st.integers(1, 16), "size": st.integers(1, 10**5)}))


def cost(group: GroupSpec, more: int = 0) -> float:
    """Bytes that a group was planned with, were there so many more rows."""
    return (group.capacity + more) * bytes_per_row(group.dim, group.dtype, group.optimizer)


def taken(layout: EmbeddingLayout, more_per_table: int = 0) -> float:
    """Bytes of all rows, were there so many more in each table."""
    return sum(cost(group, more_per_table * len(group.tables)) for group in layout.groups)


def stored(group: GroupSpec) -> float:
    """Bytes that a group's stores take at capacity: whole rows, and whole buckets, of each partition."""
    rows = group_rows(group) * (group.width * 4 + 3)
    return rows + group.partitions * group.buckets * SLOTS * 16


@given(TABLES, st.integers(2**16, 2**45))
def test_tables_take_the_memory_they_are_given_and_not_more(tables: dict[str, Any], memory: int) -> None:
    layout = embedding_layout(make_run(list(tables), embedding={"memory": memory, "tables": tables}))
    assert taken(layout) <= memory * (1 + 1e-12) < taken(layout, more_per_table=1) * (1 + 2e-12)
    assert len({group.capacity / len(group.tables) for group in layout.groups}) == 1


@given(TABLES, SHARES, STACKS, st.integers(2**20, 2**45), st.integers(1, 10_000))
def test_the_stores_take_the_memory_but_for_what_they_round_up(
    tables: dict[str, Any], shares: dict[str, float], stacks: dict[str, Any], memory: int, partitions: int
) -> None:
    for name in tables:
        own = {"share": shares.get(name), "hash_stack": stacks.get(name)}
        tables[name] = tables[name] | own
    embedding = {"memory": memory, "num_partitions": partitions, "tables": tables}
    layout = embedding_layout(make_run(list(tables), embedding=embedding))
    assert sum(map(stored, layout.groups)) <= memory * 1.002 + 128 * len(layout.groups)
    for group in layout.groups:
        assert stored(group) <= cost(group) * 1.002 + 128
        assert group.partitions == partitions_for(group.capacity, partitions)
        for table in group.tables:
            assert 1 <= table_rows(group)[table.name] <= (table.rounds * table.size or group.capacity)
        alone = [shares[table.name] for table in group.tables if table.name in shares]
        assert not alone or (len(group.tables) == 1 and cost(group) <= memory * alone[0] * (1 + 1e-9))


@given(TABLES, st.integers(12, 2**40))
def test_tables_hold_the_rows_they_are_given_and_not_more(tables: dict[str, Any], capacity: int) -> None:
    embedding = {"memory": 1, "capacity": capacity, "tables": tables}
    layout = embedding_layout(make_run(list(tables), embedding=embedding))
    rows = sum(group.capacity for group in layout.groups)
    assert rows <= capacity < rows + len(tables)
    assert len({group.capacity / len(group.tables) for group in layout.groups}) == 1


def test_a_table_with_a_share_is_a_group_of_its_own() -> None:
    tables = {"b": {"share": 0.5}, "c": {"share": 0.25}}
    layout = embedding_layout(make_run(["a", "b", "c", "d"], embedding={"capacity": 1000, "tables": tables}))
    found = [([table.name for table in group.tables], group.capacity) for group in layout.groups]
    assert found == [(["a", "d"], 250), (["b"], 500), (["c"], 250)]


def test_shares_may_be_all_there_is() -> None:
    tables = {name: {"share": share} for name, share in (("a", 0.1), ("b", 0.2), ("c", 0.7))}
    layout = embedding_layout(make_run(list(tables), embedding={"capacity": 1000, "tables": tables}))
    assert [group.capacity for group in layout.groups] == [100, 200, 700]


def test_a_share_is_of_memory() -> None:
    embedding = {"memory": "1MiB", "tables": {"a": {"share": 0.75, "dim": 64}}}
    alone, common = embedding_layout(make_run(["a", "b"], embedding=embedding)).groups
    assert cost(alone) <= 0.75 * 2**20 < cost(alone, more=1)
    assert cost(common) <= 0.25 * 2**20 < cost(common, more=1)


def test_a_hash_stack_leaves_what_it_cannot_use_to_others() -> None:
    tables = {"b": {"hash_stack": {"rounds": 2, "size": 50}}, "c": {"dim": 4}}
    layout = embedding_layout(make_run(["a", "b", "c"], embedding={"capacity": 1000, "tables": tables}))
    assert [group.capacity for group in layout.groups] == [450 + 100, 450]
    assert table_rows(layout.groups[0]) == {"a": 450, "b": 100}
    assert table_rows(layout.groups[1]) == {"c": 450}


TINY = {"share": 0.001}


@pytest.mark.parametrize(
    ("embedding", "told"),
    [
        (
            {"memory": 100},
            "embedding.memory=100 has no room for one row of each of the 2 tables; give embedding.memory a higher "
            "value",
        ),
        (
            {"capacity": 1},
            "embedding.capacity=1 has no room for one row of each of the 2 tables; give embedding.capacity a higher "
            "value",
        ),
        (
            {"capacity": 100, "tables": {"a": TINY}},
            "embedding.tables.a.share=0.001 of embedding.capacity=100 has no room for one row; raise one of them",
        ),
        (
            {"capacity": 10, "tables": {"a": {"share": 0.99}}},
            "what the shares leave of embedding.capacity=10 has no room for one row of table b; give "
            "embedding.capacity a higher value",
        ),
        (
            {"tables": {"a": {"share": 0.4}, "b": {"share": 0.6}}},
            "embedding.tables.a.share + embedding.tables.b.share = 1 leaves nothing to the tables without a share: c",
        ),
    ],
)
def test_a_budget_without_a_row_for_every_table_is_refused(embedding: dict[str, Any], told: str) -> None:
    names = ["a", "b", "c"] if len(embedding.get("tables", {})) == 2 else ["a", "b"]
    with pytest.raises(ConfigError) as failure:
        embedding_layout(make_run(names, embedding=embedding))
    assert str(failure.value) == told
