"""Look-ups and updates of one server's rows, against torch and the limits of the memory, on one thread.

The keys are distinct and have rows, as in training. torch's table has the memory that ours has: aligned to cache lines
and in huge pages; by default it has neither, and is slower. Last, the seconds until a server can answer.
"""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import product
from time import perf_counter

import numpy as np

from persia_cli.bench.result import OURS, Result
from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.store.shard import Shard
from scripts.measure import Given, Note, limits, stores
from scripts.measure.timing import Turn, alternate, compared, measured

REQUESTS = 16
"""Requests in a row, which need more rows than a cache holds."""
SERVER = (
    "from persia_cli.roles.embedding_server.server import EmbeddingServer; "
    "from persia_cli.kernels.toolchain.warm import warm; "
    "from scripts.measure.stores import layout_of; from persia_cli.store.shard import Shard; "
    "warm(); Shard(layout_of(16, 'adagrad', 10_000_000), 0, 1)"
)
"""All the work of a server before it reports ready."""


def options(parser: ArgumentParser) -> None:
    """Add the options of this comparison."""
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table, as far as they fit the memory")


def measure(given: Given, note: Note) -> Iterator[Result]:
    """Measure each dim with uniform and with skewed ids."""
    retain_freed_memory()
    wanted = 60_000 if given.quick else given.rows
    for dim in given.dims[:1] if given.quick else given.dims:
        rows, fewer = stores.rows_that_fit(wanted, dim, "adagrad", extra=dim * 4)
        note(f"filling {stores.label(rows)} of dim {dim}")
        shard = stores.filled(dim, "adagrad", rows)
        for part, skewed in product((_look_up, _update), (False, True)):
            yield from part(given.rounds, shard, dim, rows, skewed, fewer)
    note("starting servers")
    yield _start(given.rounds)


def _look_up(rounds: int, shard: Shard, dim: int, rows: int, skewed: bool, fewer: str) -> Iterator[Result]:
    import torch

    from scripts.measure.embedding_steps import table

    torch.set_num_threads(1)
    requests = _requests(rows, skewed)
    most = max(request.ids.size for request in requests)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena
    out = np.empty(most * dim, np.float32)
    weights, selected, indices = (
        table(rows, dim),
        table(most, dim),
        [torch.from_numpy(request.ids) for request in requests],
    )
    timed = alternate(
        {
            OURS: lambda: [shard.look_up(0, request.keys, request.tables, 1, True) for request in requests],
            "torch.index_select": lambda: [
                torch.index_select(weights, 0, each, out=selected[: len(each)]) for each in indices
            ],
            "gather limit": lambda: [limits.gather(arena, width, dim, request.ids, out) for request in requests],
        },
        rounds,
    )
    yield compared(_label("look-up", dim, rows, skewed), timed, stores.millions(requests), "Mrows/s", fewer)


def _update(rounds: int, shard: Shard, dim: int, rows: int, skewed: bool, fewer: str) -> Iterator[Result]:
    requests, limit = _requests(rows, skewed), "read-modify-write limit"
    sent = stores.gradients(max(request.ids.size for request in requests), dim)
    width, arena = shard.layout.groups[0].width, shard.stores[0].rows.arena

    def look_up_all() -> None:
        for number, request in enumerate(requests):
            shard.look_up(0, request.keys, request.tables, 1, True, batch=number)

    def update_all(kept: bool) -> None:
        for number, request in enumerate(requests):
            shard.update(0, request.keys, request.tables, sent[: request.ids.size], 1, batch=number if kept else None)

    timed = alternate(
        {
            "from keys": lambda: update_all(kept=False),
            "rows kept": Turn(lambda: update_all(kept=True), prepare=look_up_all, loops=1),
            limit: lambda: [limits.read_modify_write(arena, width, request.ids) for request in requests],
        },
        rounds,
    )
    for way in ("from keys", "rows kept"):
        name = f"{_label('update Adagrad', dim, rows, skewed)}, {way}"
        yield compared(name, {OURS: timed[way], limit: timed[limit]}, stores.millions(requests), "Mrows/s", fewer)


def _start(rounds: int) -> Result:
    """Measure the seconds until a server could answer, with compiled kernels in the cache."""
    seconds = []
    for _ in range(rounds + 1):
        begin = perf_counter()
        subprocess.run([sys.executable, "-c", SERVER], check=True)
        seconds.append(perf_counter() - begin)
    # The first one may have compiled.
    return measured("until a server is ready, kernels cached", "s", {OURS: seconds[1:]})


def _requests(rows: int, skewed: bool) -> list[stores.RowRequest]:
    return stores.requests(rows, stores.SERVER_IDS * (2 if skewed else 1), skewed, REQUESTS)


def _label(what: str, dim: int, rows: int, skewed: bool) -> str:
    return f"{what}, dim {dim}, {stores.label(rows)}, {'Zipf' if skewed else 'uniform'}"
