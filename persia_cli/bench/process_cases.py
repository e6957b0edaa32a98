"""Cases of `bench kernels` in a separate process: memory per row, and the time until a server is ready."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from time import perf_counter

from persia_cli.bench.result import Result, Scale, within
from persia_cli.store.layout import RowOptimizer, row_width

DIM = 16
BESIDE = 32
"""Bytes that a row may take in addition to its values."""
READY_S = 3.0
SERVER = (
    "from persia_cli.roles import embedding_server; from persia_cli.kernels.warm import warm; "
    "from persia_cli.bench.layouts import one_table; from persia_cli.store.shard import Shard; "
    "warm(); Shard(one_table(16, 'adagrad', 10_000_000), 0, 1)"
)
"""All the work of a server before it reports ready."""


def memory(scale: Scale) -> Iterator[Result]:
    """Measure resident bytes per row in a process with a full store: those of the store, and those of the process."""
    rows = scale.rows[0]
    measured = json.loads(_python("-m", "persia_cli.bench.resident", str(rows), str(DIM)))
    values = row_width(DIM, "float32", RowOptimizer("adagrad", lr=0.01)) * 4
    label, limit = f"memory at capacity, {rows / 1e6:g}M rows, dim {DIM}, Adagrad", f"values + {BESIDE}"
    note = f"{measured['rows']:,} rows held; the process had {measured['before'] / 1e6:.0f} MB before"
    added = (measured["after"] - measured["before"]) / measured["rows"]
    yield within(f"{label}, the store", limit, added, values + BESIDE, "bytes/row", note)
    whole = within(f"{label}, the process", limit, measured["after"] / measured["rows"], values + BESIDE, "bytes/row")
    yield replace(whole, target=None)


def start(scale: Scale) -> Iterator[Result]:
    """Measure the seconds until a server could answer, with compiled kernels in the cache."""
    _python("-c", SERVER)
    seconds = []
    for _ in range(min(scale.rounds, 7)):
        begin = perf_counter()
        _python("-c", SERVER)
        seconds.append(perf_counter() - begin)
    note = f"{min(seconds):.2f} to {max(seconds):.2f}"
    yield within("server ready, kernels cached", f"{READY_S:g} s", median(seconds), READY_S, "s", note)


def _python(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
