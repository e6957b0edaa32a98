"""The embedding layout of a run: groups, tables, capacities and the features that read them."""

import math
from dataclasses import dataclass, replace

from persia_cli.config.schema import Run, Table
from persia_cli.config.schema.embedding import DENSE_TABLE, ROUNDING, Frequent
from persia_cli.config.schema.sequences import Sequential
from persia_cli.errors import ConfigError
from persia_cli.plan.capacity import CapacityRequest, disk_space, divide
from persia_cli.plan.columns import next_item_loss, sparse_features
from persia_cli.plan.dense import dense_group, row_optimizer
from persia_cli.store.cold.geometry import MAX_RECORDS, geometries, log_memory
from persia_cli.store.layout import (
    MAX_ROWS,
    MAX_TABLES,
    MIN_INDEX_BYTES,
    NEGATIVES,
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    Storage,
    TableSpec,
    bytes_per_row,
    epoch_bits_for,
    partitions_for,
    partitions_of,
    table_salt,
)

SPARE = 1.15
"""Ratio of the capacity of a hash stack in several partitions to its rows: six standard deviations more."""

ROW_WISE = ("rowwise_adagrad", "rowwise_adam")
"""The optimizers of int8 rows, which would save little memory with a state for each column."""

FROZEN = RowOptimizer("sgd", lr=0.0)
"""The optimizer of rows that never change: it has no state, and servers get no gradients for it."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The common properties of the tables of one group; `alone` is the name of a table with its own share."""

    dim: int
    dtype: Storage
    optimizer: RowOptimizer
    alone: str | None


def embedding_layout(run: Run) -> EmbeddingLayout:
    """Return the layout: tables in order of first use, grouped by equal dim, dtype and optimizer settings.

    A table with a share is a separate group. The others divide the rest as if each had equally many rows (a hash
    stack no more than it can use), and tables of one group share its rows. All groups together, with their index, never
    take more than `embedding.memory`, or have more than `embedding.capacity` rows: rows and buckets of each partition
    are rounded down. With `embedding.cold`, the memory of the logs on disks is in that of `embedding.memory`, and comes
    on top of `embedding.capacity`. In asynchronous mode one more group, outside the budget, stores the dense weights;
    it has no log, since all its rows are used in each step. Raise ConfigError for settings of a table that no feature
    reads, for shares that leave nothing to a table without one, if there is less than one row for a table, and for too
    little space on disks.
    """
    features = sparse_features(run)
    names = list(dict.fromkeys(feature.table or feature.name for feature in features))
    _refuse_unread(run, names)
    kinds = [_kind(run, name) for name in names]
    tables = [_table(run, name, number) for number, name in enumerate(names)]
    groups = _groups(run, tables, kinds, 0)
    if run.embedding.cold is not None:
        groups = _groups_with_logs(run, tables, kinds, disk_space(run, groups))
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
        expire_after=run.embedding.expire_after if isinstance(run.embedding.expire_after, int) else None,
        budget="embedding.memory" if run.embedding.capacity is None else "embedding.capacity",
    )


def step_layout(run: Run) -> EmbeddingLayout:
    """Return the layout of batches as loaders send them: with drawn negatives, one more feature of the items' table.

    It comes last. Its ids all belong to the first sample of a rank's part of a step; evaluations have none.
    """
    layout, loss = embedding_layout(run), next_item_loss(run)
    if loss is None or loss.candidates != "uniform" or not isinstance(run.model, Sequential):
        return layout
    item = next(feature for feature in layout.features if feature.name == run.model.candidate)
    drawn = FeatureSpec(NEGATIVES, item.group, item.table, NEGATIVES)
    return replace(layout, features=(*layout.features, drawn))


def require_limits(layout: EmbeddingLayout, servers: int) -> None:
    """Raise ConfigError for more tables than a job can have, or more rows of a group than a server can number."""
    if len(layout.tables()) > MAX_TABLES:
        raise ConfigError(f"dataset.sparse reads {len(layout.tables()):,} tables; a job has at most {MAX_TABLES:,}")
    for group in layout.groups:
        first, *others = (table.name for table in group.tables)
        name = f"{first} and {len(others)} more" if others else first
        partitions = max(len(partitions_of(group.partitions, server, servers)) for server in range(servers))
        if group.rows_per_partition * partitions > MAX_ROWS:
            raise ConfigError(
                f"table {name} would have {group.rows_per_partition * partitions:,} rows on one embedding "
                f"server, and {MAX_ROWS:,} are the most that one can have; give embedding.memory or embedding.capacity "
                "a lower value, or on machines with so much memory, raise cluster.embedding_servers"
            )
        records = max((geometry.records for geometry in geometries(group, servers)), default=0)
        if records > MAX_RECORDS:
            raise ConfigError(
                f"table {name} would have {records:,} rows on the disk of one embedding server, and {MAX_RECORDS:,} "
                "are the most that it can have; give embedding.cold.size a lower value, or raise "
                "cluster.embedding_servers"
            )


def max_rows(table: TableSpec) -> int | None:
    """Return the maximum number of rows that a table can use; None if each id has its own row.

    Hashing spreads the rows of a hash stack over partitions unevenly, so with several partitions it is a bit larger.
    """
    rows = table.rounds * table.size
    return None if not rows else rows if partitions_for(rows, 2) == 1 else math.ceil(rows * SPARE)


def _settings_of(run: Run, name: str) -> Table:
    return run.embedding.tables.get(name) or Table()


def _kind(run: Run, name: str) -> _Kind:
    settings, common = _settings_of(run, name), run.embedding
    optimizer = FROZEN
    if settings.trainable:
        optimizer = row_optimizer(
            settings.optimizer or run.optimizer.embedding,
            clip_norm=settings.clip_norm or common.clip_norm,
            weight_bound=settings.weight_bound or common.weight_bound,
        )
    dtype = settings.dtype or common.dtype
    if dtype == "int8" and settings.trainable and optimizer.kind not in ROW_WISE:
        raise _not_row_wise(settings, name, optimizer.kind)
    return _Kind(settings.dim or run.model.dim, dtype, optimizer, None if settings.share is None else name)


def _not_row_wise(settings: Table, name: str, kind: str) -> ConfigError:
    """Return the error for a table of int8 rows whose optimizer has no state or one for each column."""
    table = f"embedding.tables.{name}"
    dtype = f"{table if settings.dtype else 'embedding'}.dtype"
    optimizer = f"{table}.optimizer" if settings.optimizer else "optimizer.embedding"
    return ConfigError(
        f"{optimizer}.kind={kind} does not train rows of {dtype}=int8; choose {' or '.join(ROW_WISE)}, or another dtype"
    )


def _table(run: Run, name: str, number: int) -> TableSpec:
    settings, common = _settings_of(run, name), run.embedding
    stack, admission = settings.hash_stack, settings.admission or common.admission
    fraction = 1.0 if stack or isinstance(admission, Frequent) else admission
    counts = settings.trainable and isinstance(admission, Frequent) and not stack
    return TableSpec(
        name=name,
        number=number,
        salt=table_salt(name),
        init_bound=common.init_bound if settings.init_bound is None else settings.init_bound,
        admission=fraction if settings.trainable else 0.0,
        min_count=admission.min_count if counts and isinstance(admission, Frequent) else 1,
        rounds=stack.rounds if stack else 0,
        size=stack.size if stack else 0,
    )


def _groups_with_logs(
    run: Run, tables: list[TableSpec], kinds: list[_Kind], cold_bytes: list[int]
) -> tuple[GroupSpec, ...]:
    """Return the groups with so much space on disks each; the memory of their logs is in the budget."""
    spent = 0
    while True:
        groups = tuple(
            replace(group, cold_bytes=nbytes)
            for group, nbytes in zip(_groups(run, tables, kinds, spent), cold_bytes, strict=True)
        )
        needed = sum(log_memory(group, run.cluster.embedding_servers) for group in groups)
        # Fewer rows may be in fewer partitions, whose logs may take a little more.
        if needed <= spent or run.embedding.capacity is not None:
            return groups
        spent = needed


def _groups(run: Run, tables: list[TableSpec], kinds: list[_Kind], spent: int) -> tuple[GroupSpec, ...]:
    """Return the groups of tables, with `spent` bytes less than the budget; raise ConfigError if they have no space.

    A bucket has several rows, so the index of a group may take more memory than planned. Then the group gets fewer
    rows, unless other groups leave enough memory. The smallest comes first, since larger ones can spare more.
    """
    rows = _rows(run, tables, kinds, spent)
    of_kind: dict[_Kind, list[TableSpec]] = {}
    for table, kind in zip(tables, kinds, strict=True):
        of_kind.setdefault(kind, []).append(table)
    kinds_with_tables = list(of_kind.items())
    planned = [sum(rows[table.number] for table in members) for _, members in kinds_with_tables]
    groups = [
        _group(run, number, kind, members, capacity)
        for number, ((kind, members), capacity) in enumerate(zip(kinds_with_tables, planned, strict=True))
    ]
    if run.embedding.capacity is not None:
        return tuple(groups)
    left = run.embedding.memory - spent - math.fsum(map(_planned_bytes, groups, planned))
    left -= MIN_INDEX_BYTES * len(groups)
    for number in sorted(range(len(groups)), key=planned.__getitem__):
        kind, members = kinds_with_tables[number]
        allowed = left + _planned_bytes(groups[number], planned[number]) + MIN_INDEX_BYTES
        while (over := groups[number].nbytes - allowed) > 0 and (spare := groups[number].capacity - len(members)) > 0:
            fewer = min(spare, math.ceil(over / _planned_bytes(groups[number], 1)))
            groups[number] = _group(run, number, kind, members, groups[number].capacity - fewer)
        left = allowed - groups[number].nbytes
        if groups[number].capacity < len(members):
            raise _too_small(run, members, spent)
    if left < 0:
        raise _too_small(run, kinds_with_tables[-1][1], spent)
    return tuple(groups)


def _planned_bytes(group: GroupSpec, rows: int) -> float:
    counts_new = group.sketch_lines > 0
    return rows * bytes_per_row(group.dim, group.dtype, group.optimizer, group.counts_uses, counts_new)


def _group(run: Run, number: int, kind: _Kind, tables: list[TableSpec], rows: int) -> GroupSpec:
    """Return a group of at most so many rows, the same number in each partition."""
    partitions = partitions_for(rows, run.embedding.num_partitions)
    names = {table.name for table in tables}
    readers = sum((feature.table or feature.name) in names for feature in sparse_features(run))
    return GroupSpec(
        number=number,
        dim=kind.dim,
        optimizer=kind.optimizer,
        tables=tuple(tables),
        capacity=rows // partitions * partitions,
        partitions=partitions,
        dtype=kind.dtype,
        wire=run.embedding.wire,
        counts_uses=any(_counts_uses(run, table) for table in tables),
        epoch_bits=epoch_bits_for(rows, run.train.batch * readers),
        names_left=run.publish is not None,
    )


def _counts_uses(run: Run, table: TableSpec) -> bool:
    """Return whether a table evicts rows by frequency; tables of hash stacks never do."""
    return run.embedding.when_full in ("auto", "evict_lfu") and not table.rounds


def _rows(run: Run, tables: list[TableSpec], kinds: list[_Kind], spent: int) -> list[int]:
    """Return the rows of each table, with `spent` bytes less than the budget; raise ConfigError if one gets none."""
    capacity, memory = run.embedding.capacity, run.embedding.memory
    shares = {table.name: share for table in tables if (share := _settings_of(run, table.name).share) is not None}
    common = [table.name for table in tables if table.name not in shares]
    if common and math.fsum(shares.values()) > 1.0 - ROUNDING:
        keys = " + ".join(f"embedding.tables.{name}.share" for name in shares)
        raise ConfigError(f"{keys} = 1 leaves nothing to the tables without a share: {', '.join(common)}")
    requests = [
        CapacityRequest(
            row_cost=1.0 if capacity is not None else _row_cost(run, table, kind),
            most=max_rows(table),
            share=shares.get(table.name),
        )
        for table, kind in zip(tables, kinds, strict=True)
    ]
    budget = memory - spent - MIN_INDEX_BYTES * len(set(kinds)) if capacity is None else capacity
    rows = divide(max(0, budget), requests)
    for table, number in zip(tables, rows, strict=True):
        if not number:
            raise _too_small(run, [table], spent)
    return rows


def _row_cost(run: Run, table: TableSpec, kind: _Kind) -> float:
    return bytes_per_row(kind.dim, kind.dtype, kind.optimizer, _counts_uses(run, table), table.min_count > 1)


def _too_small(run: Run, tables: list[TableSpec], spent: int) -> ConfigError:
    """Return the error for tables that do not get a row each; `spent` bytes of the memory are for rows on disks."""
    capacity, memory = run.embedding.capacity, run.embedding.memory
    less = f" less {spent} for the index of rows on disks" if spent else ""
    given = f"embedding.memory={memory}{less} (bytes)" if capacity is None else f"embedding.capacity={capacity}"
    share = _settings_of(run, tables[0].name).share
    if share is not None:
        key = f"embedding.tables.{tables[0].name}.share"
        return ConfigError(f"{key}={share:g} of {given} is too small for one row; raise one of them")
    names = list(dict.fromkeys(feature.table or feature.name for feature in sparse_features(run)))
    common = [name for name in names if _settings_of(run, name).share is None]
    rest = f"the rest of {given} after the shares" if len(common) < len(names) else given
    of = f"each of the {len(common)} tables" if len(common) > 1 else f"table {common[0]}"
    remedy = (
        "embedding.memory a higher value, such as 1GiB" if capacity is None else "embedding.capacity a higher value"
    )
    remedy += ", or embedding.cold.size a lower one" if spent else ""
    return ConfigError(f"{rest} is too small for one row of {of}; give {remedy}")


def _refuse_unread(run: Run, names: list[str]) -> None:
    if DENSE_TABLE in names:
        raise ConfigError(f"dataset.sparse: a table cannot be called {DENSE_TABLE}: it is reserved for dense weights")
    unread = sorted(set(run.embedding.tables) - set(names))
    if unread:
        raise ConfigError(
            f"embedding.tables.{unread[0]}: no sparse feature reads this table; there are {', '.join(names)}"
        )
