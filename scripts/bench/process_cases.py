"""Cases of `scripts.bench kernels` in a separate process: memory per row, and the time until a server is ready.

`python -m scripts.bench.process_cases ROWS DIM` fills a store to capacity and prints its memory.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from persia_cli.bench.result import OURS, Result, Side
from persia_cli.kernels.toolchain.warm import warm
from persia_cli.observe.usage import resident_bytes
from persia_cli.store.layout import RowOptimizer, row_width
from persia_cli.store.shard import Shard
from scripts.bench import stores
from scripts.bench.alternate import Scale, single

DIM = 16
REQUEST = 1 << 16
SERVER = (
    "from persia_cli.roles.embedding_server.server import EmbeddingServer; "
    "from persia_cli.kernels.toolchain.warm import warm; "
    "from scripts.bench.stores import layout_of; from persia_cli.store.shard import Shard; "
    "warm(); Shard(layout_of(16, 'adagrad', 10_000_000), 0, 1)"
)
"""All the work of a server before it reports ready."""


def memory(scale: Scale) -> Iterator[Result]:
    """Measure resident bytes per row in a process with a full store: those of the store, and those of the process."""
    rows = scale.rows[0]
    measured = json.loads(_python("-m", "scripts.bench.process_cases", str(rows), str(DIM)))
    values = row_width(DIM, "float32", RowOptimizer("adagrad", lr=0.01)) * 4
    label = f"memory at capacity, {rows / 1e6:g}M rows, dim {DIM}, Adagrad"
    note = f"{measured['rows']:,} rows held; the process had {measured['before'] / 1e6:.0f} MB before"
    added = (measured["after"] - measured["before"]) / measured["rows"]
    yield single(f"{label}, the store", "bytes/row", {OURS: added, "its values": values}, note)
    whole = measured["after"] / measured["rows"]
    yield single(f"{label}, the process", "bytes/row", {OURS: whole, "its values": values})


def start(scale: Scale) -> Iterator[Result]:
    """Measure the seconds until a server could answer, with compiled kernels in the cache."""
    _python("-c", SERVER)
    seconds = []
    for _ in range(min(scale.rounds, 7)):
        begin = perf_counter()
        _python("-c", SERVER)
        seconds.append(perf_counter() - begin)
    note = f"{min(seconds):.2f} to {max(seconds):.2f}"
    sides = [Side(OURS, median(seconds), min(seconds), max(seconds))]
    yield Result("", "server ready, kernels cached", "s", sides, note=note)


def _python(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout


def filled_memory(capacity: int, dim: int) -> dict[str, int]:
    """Add ids up to four thirds of a store's capacity; return the process's bytes before and after, and the rows."""
    warm()
    before = resident_bytes()
    shard = Shard(stores.layout_of(dim, "adagrad", capacity), 0, 1)
    last = capacity + capacity // 3
    for start in range(0, last, REQUEST):
        asked = stores.request(np.arange(start, min(last, start + REQUEST)))
        shard.look_up(0, asked.keys, asked.tables, start // REQUEST, True)
    rows = sum(counters.rows for counters in shard.counters().values())
    return {"before": before, "after": resident_bytes(), "rows": rows}


if __name__ == "__main__":
    print(json.dumps(filled_memory(int(sys.argv[1]), int(sys.argv[2]))))
