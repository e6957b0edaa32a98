"""The division of memory, or of rows, among tables, and of the space on disks among groups; whether rows fit it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from persia_cli.config.schema import Run
from persia_cli.errors import CheckpointError, ConfigError, count
from persia_cli.plan.warm_start import TakenTable, TakenVectors
from persia_cli.store.checkpoints.manifest import SavedTable
from persia_cli.store.cold.folders import require_space, run_folder
from persia_cli.store.cold.geometry import ColdGeometry, rows_on_disk
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, OptimizerKind, RowOptimizer, bytes_per_row

UNEVEN = 2
"""Ratio of the average partitions of a server to the fewest, if each has one."""


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """A table's request for capacity.

    `row_cost` is the cost of a row in the budget, `most` the maximum number of rows that the table can use (None: no
    limit), `share` the fraction of the budget that is reserved for it.
    """

    row_cost: float
    most: int | None = None
    share: float | None = None


def divide(budget: float, requests: Sequence[CapacityRequest]) -> list[int]:
    """Return the rows of each table; together they cost at most `budget`.

    A table with a share gets the rows that fit its share; its unused part stays free. All others get equal numbers
    of rows of the rest of the budget; the unused part of one of them goes to the others.
    """
    rows = [0] * len(requests)
    equal = [number for number, request in enumerate(requests) if request.share is None]
    for number, request in enumerate(requests):
        if request.share is not None:
            rows[number] = int(_at_most(request, request.share * budget // request.row_cost))
    left = budget * (1.0 - math.fsum(request.share or 0.0 for request in requests))
    while equal:
        each = max(0.0, left / sum(requests[number].row_cost for number in equal))
        content = {number for number in equal if _at_most(requests[number], each) < each}
        for number in content or equal:
            rows[number] = int(_at_most(requests[number], each))
            left -= rows[number] * requests[number].row_cost
        equal = [number for number in equal if content and number not in content]
    return rows


def _at_most(request: CapacityRequest, rows: float) -> float:
    return rows if request.most is None else min(rows, request.most)


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The need of a table if every id of the data has a row."""

    rows: int
    nbytes: int
    fitting: int | None
    """Number of rows that it gets of a given memory without shares; None if no memory is given."""


def table_needs(ids: Mapping[str, int], dim: int, optimizer: OptimizerKind, memory: int | None) -> dict[str, TableNeed]:
    """Return the need of each table by name, from its number of distinct ids, for float32 rows of `dim` columns."""
    row_bytes = bytes_per_row(dim, "float32", RowOptimizer(optimizer, lr=1.0), counts_uses=True)
    fitting: list[int | None] = [None] * len(ids)
    if memory is not None:
        fitting = [*divide(memory, [CapacityRequest(row_bytes, most=rows) for rows in ids.values()])]
    return {
        name: TableNeed(rows, math.ceil(rows * row_bytes), fits)
        for (name, rows), fits in zip(ids.items(), fitting, strict=True)
    }


def disk_space(run: Run, groups: Sequence[GroupSpec]) -> list[int]:
    """Divide `embedding.cold.size`: each group gets its minimum, then a share in proportion to its memory.

    Raise ConfigError if that is more than there is.
    """
    cold, servers = run.embedding.cold, run.cluster.embedding_servers
    assert cold is not None
    least = [UNEVEN * servers * ColdGeometry(group.width, 0).min_bytes for group in groups]
    rest = cold.size - sum(least)
    if rest < 0:
        raise ConfigError(
            f"embedding.cold.size={cold.size} (bytes) is too small: {count(len(groups), 'group')} of tables on "
            f"{count(servers, 'embedding server')} need at least {sum(least) // 1024}KiB"
        )
    memory = sum(group.nbytes for group in groups)
    return [least[group.number] + rest * group.nbytes // memory for group in groups]


def require_disks(run: Run, run_dir: Path) -> None:
    """Raise ConfigError if this machine will run the job, and cannot store rows on its disks as the run wants."""
    cold = run.embedding.cold
    if cold is not None and not run.cluster.is_spread:
        require_space(cold.path, run_folder(cold.path, run_dir), cold.size)


def require_capacity(
    tables: Iterable[SavedTable | TakenTable | TakenVectors],
    layout: EmbeddingLayout,
    servers: int,
    source: str = "the checkpoint",
) -> None:
    """Raise CheckpointError if tables that share memory begin with more rows than fit, there and on disks.

    `source` names where they come from. Even if all of them fit together, a single server can have too little space; it
    reports that as it loads.
    """
    rows = {table.name: table.rows for table in tables}
    for group in layout.groups:
        wanted = sum(rows.get(table.name, 0) for table in group.tables)
        capacity = group.rows_per_partition * group.partitions + rows_on_disk(group, servers)
        if wanted > capacity:
            raise CheckpointError(
                f"{source} has {wanted:,} rows of the tables that share memory "
                f"({', '.join(table.name for table in group.tables)}), but only {capacity:,} fit; give "
                f"{layout.budget} a higher value"
            )
