"""The embedding layout of a run: groups, tables, capacities and the features that read them."""

import math
from dataclasses import dataclass

from persia_cli.config.schema import Run, Table
from persia_cli.config.schema.embedding import ROUNDING
from persia_cli.errors import ConfigError
from persia_cli.plan.capacity import Claim, divide
from persia_cli.plan.columns import sparse_features
from persia_cli.plan.dense import dense_group
from persia_cli.plan.optimizer import row_optimizer
from persia_cli.store.layout import (
    DENSE_TABLE,
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    Storage,
    TableSpec,
    bytes_per_row,
    partitions_for,
    table_salt,
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tables of one group have in common; `alone` is the name of a table that has a share of its own."""

    dim: int
    dtype: Storage
    optimizer: RowOptimizer
    alone: str | None


def embedding_layout(run: Run) -> EmbeddingLayout:
    """Return the layout: tables in order of first use, grouped by equal dim, dtype and optimizer settings.

    A table with a share is a group of its own. Every other table gets the same number of rows, so that all together
    fit `embedding.memory` (or add up to `embedding.capacity`); a hash stack gets no more than it can use. The store
    rounds up to whole rows and whole buckets of 64 bytes in each partition, and a partition has room for thousands of
    rows or is the only one: by less than two thousandths and two buckets a group the budget may be exceeded.
    In asynchronous mode one more group keeps the dense weights, outside the budget.
    Raises ConfigError for settings of a table that no feature reads, for shares that leave nothing to a table without
    one, and where there is not one row for each table.
    """
    features = sparse_features(run)
    names = list(dict.fromkeys(feature.table or feature.name for feature in features))
    _refuse_unread(run, names)
    kinds = [_kind(run, name) for name in names]
    tables = [_table(run, name, number) for number, name in enumerate(names)]
    rows = _rows(run, tables, kinds)
    members: dict[_Kind, list[TableSpec]] = {}
    for table, kind in zip(tables, kinds, strict=True):
        members.setdefault(kind, []).append(table)
    groups = tuple(
        _group(run, number, kind, group, sum(rows[table.number] for table in group))
        for number, (kind, group) in enumerate(members.items())
    )
    group_of = {table.number: group.number for group in groups for table in group.tables}
    specs = []
    for feature in features:
        number = names.index(feature.table or feature.name)
        specs.append(
            FeatureSpec(
                name=feature.name,
                group=group_of[number],
                table=number,
                pooling=feature.pooling,
                max_length=feature.max_length,
            )
        )
    dense = dense_group(run, len(groups), len(tables))
    return EmbeddingLayout(
        groups=groups if dense is None else (*groups, dense),
        features=tuple(specs),
        seed=run.seed,
        when_full=run.embedding.when_full,
    )


def group_rows(group: GroupSpec) -> int:
    """Return the rows that a group's stores have room for: its capacity, rounded up for each partition."""
    return group.partitions * group.rows_per_partition


def table_rows(group: GroupSpec) -> dict[str, int]:
    """Return the rows each of a group's tables was planned with, by name; in the store they share all of them."""
    rows = divide(group.capacity, [Claim(1, most_rows(table)) for table in group.tables])
    return {table.name: number for table, number in zip(group.tables, rows, strict=True)}


def most_rows(table: TableSpec) -> int | None:
    """Return the number of different rows that a table can have; None where ids have rows of their own."""
    return table.rounds * table.size if table.rounds else None


def _own(run: Run, name: str) -> Table:
    return run.embedding.tables.get(name) or Table()


def _kind(run: Run, name: str) -> _Kind:
    own, common = _own(run, name), run.embedding
    optimizer = row_optimizer(
        own.optimizer or run.optimizer.embedding,
        clip_norm=own.clip_norm or common.clip_norm,
        weight_bound=own.weight_bound or common.weight_bound,
    )
    return _Kind(own.dim or run.model.dim, own.dtype or common.dtype, optimizer, None if own.share is None else name)


def _table(run: Run, name: str, number: int) -> TableSpec:
    own, common = _own(run, name), run.embedding
    stack = own.hash_stack
    return TableSpec(
        name=name,
        number=number,
        salt=table_salt(name),
        init_bound=common.init_bound if own.init_bound is None else own.init_bound,
        admission=1.0 if stack else own.admission or common.admission,
        rounds=stack.rounds if stack else 0,
        size=stack.size if stack else 0,
    )


def _group(run: Run, number: int, kind: _Kind, tables: list[TableSpec], capacity: int) -> GroupSpec:
    return GroupSpec(
        number=number,
        dim=kind.dim,
        optimizer=kind.optimizer,
        tables=tuple(tables),
        capacity=capacity,
        partitions=partitions_for(capacity, run.embedding.num_partitions),
        dtype=kind.dtype,
        wire=run.embedding.wire,
    )


def _rows(run: Run, tables: list[TableSpec], kinds: list[_Kind]) -> list[int]:
    """Return the rows of each table; raises ConfigError where one has none."""
    capacity, memory = run.embedding.capacity, run.embedding.memory
    given = f"embedding.memory={memory}" if capacity is None else f"embedding.capacity={capacity}"
    shares = {table.name: share for table in tables if (share := _own(run, table.name).share) is not None}
    common = [table.name for table in tables if table.name not in shares]
    if common and math.fsum(shares.values()) > 1.0 - ROUNDING:
        keys = " + ".join(f"embedding.tables.{name}.share" for name in shares)
        raise ConfigError(f"{keys} = 1 leaves nothing to the tables without a share: {', '.join(common)}")
    claims = [
        Claim(
            row_cost=1.0 if capacity is not None else bytes_per_row(kind.dim, kind.dtype, kind.optimizer),
            most=most_rows(table),
            share=shares.get(table.name),
        )
        for table, kind in zip(tables, kinds, strict=True)
    ]
    rows = divide(memory if capacity is None else capacity, claims)
    for table, number in zip(tables, rows, strict=True):
        if number:
            continue
        if table.name in shares:
            key = f"embedding.tables.{table.name}.share"
            raise ConfigError(f"{key}={shares[table.name]:g} of {given} has no room for one row; raise one of them")
        rest = f"what the shares leave of {given}" if shares else given
        of = f"each of the {len(common)} tables" if len(common) > 1 else f"table {table.name}"
        raise ConfigError(f"{rest} has no room for one row of {of}; give {given.partition('=')[0]} a higher value")
    return rows


def _refuse_unread(run: Run, names: list[str]) -> None:
    if DENSE_TABLE in names:
        raise ConfigError(f"dataset.sparse: a table cannot be called {DENSE_TABLE}, which is kept for dense weights")
    unread = sorted(set(run.embedding.tables) - set(names))
    if unread:
        raise ConfigError(
            f"embedding.tables.{unread[0]}: no sparse feature reads this table; there are {', '.join(names)}"
        )
