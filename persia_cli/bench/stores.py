"""Filled stores for measurements, and requests to them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.layouts import Kind, one_table
from persia_cli.bench.machine import available_bytes
from persia_cli.bench.traffic import distinct, keys_of
from persia_cli.store.layout import INDEX_BYTES, RowOptimizer, row_width
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import row_bytes

LOAD = 0.65
"""Fraction of a store's capacity that is used in measurements."""
CHUNK = 1 << 20
"""Ids of one request while a store is filled."""
SPARE = 0.55
"""Fraction of the available memory that one measurement may use."""

Block = NDArray[np.uint8]
"""Rows in the form of messages: uint8[rows, bytes of a row]."""


@dataclass(frozen=True)
class RowRequest:
    """Distinct keys of one table, as requested from one server."""

    ids: NDArray[np.int64]
    """Row numbers, for baselines with tables of fixed size."""
    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]


def filled(dim: int, kind: Kind, rows: int, servers: int = 1, load: float = LOAD) -> list[Shard]:
    """Return the shards of all servers, together holding the rows of ids 0 … rows - 1 in random order."""
    layout = one_table(dim, kind, int(rows / load))
    shards = [Shard(layout, server, servers) for server in range(servers)]
    rng = np.random.default_rng(1)
    ids = rng.permutation(rows)
    for start in range(0, rows, CHUNK):
        whole = request(ids[start : start + CHUNK])
        for shard, part in zip(shards, divided(whole, servers, layout.groups[0].partitions), strict=True):
            shard.look_up(0, part.keys, part.tables, 0, True)
    return shards


def request(ids: NDArray[np.int64]) -> RowRequest:
    """Return the request for some ids."""
    return RowRequest(ids, keys_of(ids), np.zeros(ids.size, np.uint16))


def divided(whole: RowRequest, servers: int, partitions: int) -> list[RowRequest]:
    """Return each server's part of a request."""
    place = (whole.keys >> np.uint64(32)) * np.uint64(partitions) >> np.uint64(32)
    owner = place.astype(np.int64) * servers // partitions
    return [
        RowRequest(whole.ids[owner == server], whole.keys[owner == server], whole.tables[owner == server])
        for server in range(servers)
    ]


def requests(rows: int, size: int, skewed: bool, count: int) -> list[RowRequest]:
    """Return a series of requests: distinct ids of `rows`, uniform, or the distinct ones of `size` skewed draws."""
    rng = np.random.default_rng(2)
    return [request(distinct(rng, rows, size, skewed)) for _ in range(count)]


def gradients(size: int, dim: int) -> Block:
    """Return uint8[size, row_bytes] random float32 gradients in the form of messages."""
    values = np.random.default_rng(3).standard_normal((size, dim), np.float32) * np.float32(1e-3)
    assert row_bytes(dim, "float32") == dim * 4
    return values.view(np.uint8)


def rows_that_fit(rows: int, dim: int, kind: Kind, beside: int = 0, spare: float = SPARE) -> tuple[int, str]:
    """Return at most `rows` rows that fit this machine's memory, and a note if they are fewer.

    Each row takes the store's memory at its load, and `beside` bytes for the baselines.
    """
    each = row_width(dim, "float32", RowOptimizer(kind, lr=0.01)) * 4 + INDEX_BYTES / LOAD + beside
    fits = int(available_bytes() * spare / each)
    if fits >= rows:
        return rows, ""
    return fits, f"{fits:,} rows instead of {rows:,}: {available_bytes() / 2**30:.1f} GiB of memory are free"
