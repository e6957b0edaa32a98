"""The rows of each table: equal parts of the budget, but for shares and for hash stacks that need less."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persia_cli.errors import ConfigError
from persia_cli.kernels.rows import hashing
from persia_cli.plan.capacity import CapacityRequest, divide
from persia_cli.plan.embedding import embedding_layout
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, bytes_per_row, partitions_for, partitions_of
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from tests.support.runs import make_run
from tests.unit.plan.settings import NAMES, TABLES

SHARES = st.dictionaries(NAMES, st.floats(0.01, 0.08))
STACKS = st.dictionaries(NAMES, st.fixed_dictionaries({"rounds": st.integers(1, 16), "size": st.integers(1, 10**5)}))


def row_cost(group: GroupSpec) -> float:
    """Bytes of a row of a group, with its part of the index and of the counters of look-ups."""
    return bytes_per_row(group.dim, group.dtype, group.optimizer, group.counts_uses, group.sketch_lines > 0)


def cost(group: GroupSpec, more: int = 0) -> float:
    """Bytes that a group was planned with, if there were so many more rows."""
    return (group.capacity + more) * row_cost(group)


def taken(layout: EmbeddingLayout, more_per_table: int = 0) -> float:
    """Bytes of all rows, if there were so many more in each table."""
    return sum(cost(group, more_per_table * len(group.tables)) for group in layout.groups)


def stored(layout: EmbeddingLayout, servers: int) -> int:
    """Bytes of all arrays that grow with the rows, of the stores of all servers."""
    total = 0
    for group in layout.groups:
        for server in range(servers):
            store = RowStore(group, partitions_of(group.partitions, server, servers))
            index = store.index
            total += sum(array.nbytes for array in (index.buckets, index.tables, index.reused, index.fill))
            total += index.uses.nbytes + index.sketch.nbytes
            total += store.rows.arena.nbytes
    return total


@given(TABLES, st.integers(2**16, 2**45))
def test_tables_take_about_the_memory_they_are_given_and_equally_many_rows(tables: dict[str, Any], memory: int) -> None:
    layout = embedding_layout(make_run(list(tables), embedding={"memory": memory, "tables": tables}))
    assert sum(group.nbytes for group in layout.groups) <= memory
    bucket = max(8 * row_cost(group) for group in layout.groups)
    assert taken(layout) > memory * 0.998 - (400 + bucket) * len(tables)
    each = [group.capacity / len(group.tables) for group in layout.groups]
    assert max(each) - min(each) <= 0.002 * max(each) + 5


@settings(max_examples=40, deadline=None)
@given(TABLES, st.integers(400, 2**20), st.integers(1, 5), st.integers(1, 8), st.data())
def test_the_stores_of_all_servers_stay_within_the_memory(
    tables: dict[str, Any], memory: int, servers: int, partitions: int, data: st.DataObject
) -> None:
    shares = data.draw(SHARES)
    tables = {name: own | {"share": shares.get(name)} for name, own in tables.items()}
    embedding = {"memory": memory, "num_partitions": partitions, "tables": tables}
    with suppress(ConfigError):
        run = make_run(list(tables), embedding=embedding)
        assert stored(embedding_layout(run), servers) <= memory


# The overhead of the first group beyond its rows must come from the last one.
@example(
    tables={"t7": {"dim": 1}, "t0": {}, "t1": {}, "t2": {}},
    shares={},
    stacks={"t0": {"rounds": 1, "size": 1}, "t1": {"rounds": 1, "size": 6}, "t7": {"rounds": 1, "size": 1}},
    memory=2**20,
    partitions=1,
)
@given(TABLES, SHARES, STACKS, st.integers(2**20, 2**45), st.integers(1, 10_000))
def test_shares_and_stacks_stay_within_the_memory(
    tables: dict[str, Any], shares: dict[str, float], stacks: dict[str, Any], memory: int, partitions: int
) -> None:
    for name in tables:
        own = {"share": shares.get(name), "hash_stack": stacks.get(name)}
        tables[name] = tables[name] | own
    embedding = {"memory": memory, "num_partitions": partitions, "tables": tables}
    layout = embedding_layout(make_run(list(tables), embedding=embedding))
    assert sum(group.nbytes for group in layout.groups) <= memory
    for group in layout.groups:
        assert group.partitions == partitions_for(group.capacity, partitions)
        assert group.rows_per_partition * group.partitions == group.capacity >= len(group.tables)
        alone = [shares[table.name] for table in group.tables if table.name in shares]
        assert not alone or (len(group.tables) == 1 and cost(group) <= memory * alone[0] * (1 + 1e-9))


@given(TABLES, st.integers(12, 10**12))
def test_tables_hold_the_rows_they_are_given_and_not_more(tables: dict[str, Any], capacity: int) -> None:
    embedding = {"memory": 1, "capacity": capacity, "tables": tables}
    layout = embedding_layout(make_run(list(tables), embedding=embedding))
    rows = sum(group.capacity for group in layout.groups)
    assert rows <= capacity < rows + len(tables) + sum(group.partitions for group in layout.groups)
    each = [group.capacity / len(group.tables) for group in layout.groups]
    assert max(each) - min(each) <= 0.0005 * max(each)


def test_a_hash_stack_in_several_partitions_fits_all_its_rows() -> None:
    tables = {"a": {"hash_stack": {"rounds": 2, "size": 50_000}}}
    layout = embedding_layout(make_run(["a"], embedding={"memory": "1GiB", "tables": tables}))
    assert layout.groups[0].partitions > 1
    shard = Shard(layout, 0, 1)
    keys = np.empty(100_000, np.uint64)
    ids, zeros = np.arange(100_000, dtype=np.uint64), np.zeros(100_000, np.uint16)
    hashing.hash_ids(ids, zeros, shard.salts, keys)
    for part in range(0, 100_000, 10_000):
        shard.look_up(0, keys[part : part + 10_000], zeros[:10_000], 1 + part, create=True)
    counters = shard.counters()["a"]
    assert (counters.rows, counters.evicted, counters.refused) == (100_000, 0, 0)


@pytest.mark.parametrize(
    ("embedding", "named"),
    [
        ({"memory": 100}, ["embedding.memory=100"]),
        ({"capacity": 1}, ["embedding.capacity=1"]),
        ({"capacity": 100, "tables": {"a": {"share": 0.001}}}, ["tables.a.share=0.001", "embedding.capacity=100"]),
        ({"capacity": 10, "tables": {"a": {"share": 0.99}}}, ["embedding.capacity=10", "table b"]),
        ({"tables": {"a": {"share": 0.4}, "b": {"share": 0.6}}}, ["tables.a.share + embedding.tables.b.share = 1"]),
    ],
)
def test_a_budget_without_a_row_for_every_table_is_refused(embedding: dict[str, Any], named: list[str]) -> None:
    names = ["a", "b", "c"] if len(embedding.get("tables", {})) == 2 else ["a", "b"]
    with pytest.raises(ConfigError) as failure:
        embedding_layout(make_run(names, embedding=embedding))
    assert all(name in str(failure.value) for name in named)


CLAIMS = st.lists(
    st.builds(
        CapacityRequest, row_cost=st.sampled_from([1.0, 35.0, 83.0, 147.0]), most=st.none() | st.integers(1, 10**6)
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("requests", "rows"),
    [
        ([CapacityRequest(1), CapacityRequest(1)], [500, 500]),
        ([CapacityRequest(1), CapacityRequest(4)], [200, 200]),
        ([CapacityRequest(1, share=0.25), CapacityRequest(1), CapacityRequest(1)], [250, 375, 375]),
        ([CapacityRequest(10, share=0.25), CapacityRequest(1, share=0.75)], [25, 750]),
        ([CapacityRequest(1, most=10), CapacityRequest(1), CapacityRequest(1)], [10, 495, 495]),
        ([CapacityRequest(1, most=10), CapacityRequest(2, most=300), CapacityRequest(1)], [10, 300, 390]),
        ([CapacityRequest(1, most=10), CapacityRequest(1, most=20)], [10, 20]),
        ([CapacityRequest(1, most=10, share=0.5), CapacityRequest(1)], [10, 500]),
        ([CapacityRequest(2000), CapacityRequest(1)], [0, 0]),
        ([CapacityRequest(1, share=0.0001), CapacityRequest(1)], [0, 999]),
        ([], []),
    ],
)
def test_of_a_budget_of_1000(requests: list[CapacityRequest], rows: list[int]) -> None:
    assert divide(1000, requests) == rows


@given(CLAIMS, st.integers(0, 2**44))
def test_all_is_given_away_and_equally(requests: list[CapacityRequest], budget: int) -> None:
    rows = divide(budget, requests)
    assert sum(n * request.row_cost for n, request in zip(rows, requests, strict=True)) <= budget
    most = max(rows)
    eager = [request for n, request in zip(rows, requests, strict=True) if request.most is None or n < request.most]
    for n, request in zip(rows, requests, strict=True):
        assert n == (most if request in eager else request.most)
    left = budget - sum(n * request.row_cost for n, request in zip(rows, requests, strict=True))
    assert not eager or left < sum(request.row_cost for request in eager)


@given(CLAIMS, st.lists(st.floats(0.001, 0.3), max_size=3), st.integers(10**6, 2**44))
def test_shares_are_taken_first(requests: list[CapacityRequest], shares: list[float], budget: int) -> None:
    alone = [CapacityRequest(35.0, share=share) for share in shares]
    rows = divide(budget, [*alone, *requests])
    assert rows[: len(alone)] == [int(share * budget // 35.0) for share in shares]
    costs = [n * request.row_cost for n, request in zip(rows, [*alone, *requests], strict=True)]
    assert sum(costs) <= budget + 1
