"""Case of `scripts.bench kernels` for the price of recovery: updates that can be undone, against bare ones."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.rows.rows import FLOAT32, RowArena
from persia_cli.kernels.table.arguments import FoundRows, KernelTable, new_request
from persia_cli.kernels.table.journal import ENTRY_WORDS, KernelJournal, whole_lines
from persia_cli.kernels.table.update import UPDATES
from persia_cli.kernels.toolchain.memory import zeros
from persia_cli.store.layout import OptimizerKind, RowOptimizer, row_width
from persia_cli.store.row_rules import rule_at
from persia_cli.store.shard import Shard
from scripts.bench import stores
from scripts.bench.alternate import Scale, alternate, compared

FEW, MANY = 2_000, 2_000_000
"""Rows that the second cache holds, and rows of which no cache holds more than a few."""
REQUESTS = 16
"""Requests for rows that no cache holds."""
BARE = "without a journal"
UNIT = "Mrows/s"


def journal(scale: Scale) -> Iterator[Result]:
    """Measure updates of a shard in a memory file against those of one in private memory, whose journal is empty.

    Both change the same rows. What a memory file itself may cost, as its pages do, is not in it; `persia bench
    throughput --compare private` measures whole jobs.
    """
    for dim, kind in product(scale.dims, get_args(OptimizerKind)):
        yield _journal(scale, dim, kind, FEW, "in the cache")
        yield _journal(scale, dim, kind, min(MANY, scale.rows[0]), "from memory")


def _journal(scale: Scale, dim: int, kind: OptimizerKind, rows: int, where: str) -> Result:
    optimizer = RowOptimizer(kind, lr=stores.LR, eps=stores.EPS)
    width = row_width(dim, "float32", optimizer)
    rows, note = stores.rows_that_fit(rows, dim, kind)
    arena = RowArena(
        zeros(rows * width, np.float32), np.uint64(width), np.uint64(dim), np.uint64(dim), FLOAT32,
        np.zeros(dim, np.float32),
    )  # fmt: skip
    arena.arena.fill(0.5)
    size = min(scale.batch * 13, rows)
    count = 1 if size == rows else REQUESTS
    asked = [each.ids for each in stores.requests(rows, size, False, count)]
    table = Shard(stores.layout_of(dim, kind, 1), 0, 1).tables[0]._replace(rows=arena)
    update_all = _updates(table, optimizer, asked, size)
    words, entries = np.zeros(3, np.uint64), np.zeros(2 * int(ENTRY_WORDS), np.uint64)
    with_rows, without = (
        KernelJournal(words, np.zeros(size, np.float32), entries, np.uint64(0)) for size in (2 * whole_lines(width), 0)
    )
    kernel = UPDATES[kind]
    timed = alternate(
        {
            OURS: lambda: update_all(lambda table, *others: kernel(table._replace(journal=with_rows), *others)),
            BARE: lambda: update_all(lambda table, *others: kernel(table._replace(journal=without), *others)),
        },
        scale.rounds,
        scale.at_least,
    )
    label = f"journal, {kind}, dim {dim}, {where}"
    return compared(label, timed, sum(each.size for each in asked) / 1e6, UNIT, note)


def _updates(
    table: KernelTable, optimizer: RowOptimizer, asked: list[NDArray[np.int64]], size: int
) -> Callable[[Callable[..., None]], None]:
    """Return a function that has a kernel update the rows of all requests."""
    gradients = stores.gradients(size, int(table.rows.dim)).view(np.float32).reshape(-1)
    keys, tables = np.zeros(size, np.uint64), np.zeros(size, np.uint16)
    rule = rule_at(optimizer, 100, 0)

    def update_all(kernel: Callable[..., None]) -> None:
        for found in asked:
            n = found.size
            request = new_request(keys[:n], tables[:n], FoundRows.only(found))
            kernel(table, request, rule, gradients[: n * int(table.rows.dim)])

    return update_all
