"""The embedding layout of a run: groups, tables, capacities and the features that read them."""

from persia_cli.config.schema import Adagrad, Adam, Optimizer, Run
from persia_cli.errors import ConfigError
from persia_cli.plan.columns import sparse_features
from persia_cli.store.layout import (
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    TableSpec,
    bytes_per_row,
    table_salt,
)


def row_optimizer(optimizer: Optimizer) -> RowOptimizer:
    """Return the optimizer's plain values."""
    if isinstance(optimizer, Adagrad):
        return RowOptimizer(
            "adagrad",
            lr=optimizer.lr,
            initial_accumulator_value=optimizer.initial_accumulator_value,
            eps=optimizer.eps,
        )
    if isinstance(optimizer, Adam):
        return RowOptimizer("adam", lr=optimizer.lr, eps=optimizer.eps, beta1=optimizer.beta1, beta2=optimizer.beta2)
    return RowOptimizer("sgd", lr=optimizer.lr)


def embedding_layout(run: Run) -> EmbeddingLayout:
    """Return the layout: tables in order of first use, grouped by equal row layout and optimizer.

    Capacity: every table gets the same number of rows, so that together they fit `embedding.memory` (or add up to
    `embedding.capacity`). Raises ConfigError for settings of a table that no feature reads, and where there is not one
    row for each table.
    """
    features = sparse_features(run)
    names = list(dict.fromkeys(feature.table or feature.name for feature in features))
    unread = sorted(set(run.embedding.tables) - set(names))
    if unread:
        raise ConfigError(
            f"embedding.tables.{unread[0]}: no sparse feature reads this table; there are {', '.join(names)}"
        )
    tables: list[TableSpec] = []
    members: dict[tuple[int, RowOptimizer], list[TableSpec]] = {}
    for number, name in enumerate(names):
        own = run.embedding.tables.get(name)
        dim = own.dim if own and own.dim else run.model.dim
        optimizer = row_optimizer(own.optimizer if own and own.optimizer else run.optimizer.embedding)
        bound = own.init_bound if own and own.init_bound is not None else run.embedding.init_bound
        table = TableSpec(name=name, number=number, salt=table_salt(name), init_bound=bound)
        tables.append(table)
        members.setdefault((dim, optimizer), []).append(table)
    rows = _rows_per_table(run, members)
    groups = tuple(
        GroupSpec(number=i, dim=dim, optimizer=optimizer, tables=tuple(group), capacity=rows * len(group))
        for i, ((dim, optimizer), group) in enumerate(members.items())
    )
    group_of = {table.number: group.number for group in groups for table in group.tables}
    specs = []
    for feature in features:
        table_number = names.index(feature.table or feature.name)
        specs.append(
            FeatureSpec(
                name=feature.name,
                group=group_of[table_number],
                table=table_number,
                pooling=feature.pooling,
                max_length=feature.max_length,
            )
        )
    return EmbeddingLayout(
        groups=groups, features=tuple(specs), num_partitions=run.embedding.num_partitions, seed=run.seed
    )


def _rows_per_table(run: Run, members: dict[tuple[int, RowOptimizer], list[TableSpec]]) -> int:
    tables = sum(len(group) for group in members.values())
    if not tables:
        return 0
    per_row_of_each = sum(
        bytes_per_row(dim, optimizer.kind) * len(group) for (dim, optimizer), group in members.items()
    )
    capacity, memory = run.embedding.capacity, run.embedding.memory
    rows = capacity // tables if capacity is not None else int(memory / per_row_of_each)
    if not rows:
        given = f"embedding.memory={memory}" if capacity is None else f"embedding.capacity={capacity}"
        raise ConfigError(
            f"{given} has no room for one row of each of the {tables} tables; "
            f"give {given.partition('=')[0]} a higher value"
        )
    return rows
