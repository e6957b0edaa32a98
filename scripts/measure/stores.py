"""Stores to measure, and requests to them: of uniform ids, or as skewed as those of real advertising data."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from persia_cli.bench.machine import available_bytes
from persia_cli.kernels.rows import hashing
from persia_cli.store.layout import (
    INDEX_BYTES,
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    OptimizerKind,
    RowOptimizer,
    TableSpec,
    epoch_bits_for,
    partitions_for,
    row_width,
    table_salt,
)
from persia_cli.store.shard import Shard
from persia_cli.store.wire_rows import row_bytes

SKEW = 1.05
PARTITIONS = 4096
LR, EPS = 0.01, 1e-8
LOAD = 0.65
"""Fraction of a store's capacity that is used in measurements."""
BATCH = 4096
"""Samples of a batch."""
SERVER_IDS = BATCH * 26 // 2
"""Ids of a batch of 26 features that one of two servers gets."""
CHUNK = 1 << 20
"""Ids of one request while a store is filled."""
SPARE = 0.55
"""Fraction of the available memory that one measurement may use."""

Ids = NDArray[np.int64]
Keys = NDArray[np.uint64]
Block = NDArray[np.uint8]
"""Rows in the layout of messages: uint8[rows, bytes of a row]."""


@dataclass(frozen=True)
class RowRequest:
    """Distinct keys of one table, as requested from one server."""

    ids: Ids
    """Row numbers, for baselines with tables of fixed size."""
    keys: Keys
    tables: NDArray[np.uint16]


def zipf(rng: np.random.Generator, values: int, size: int) -> Ids:
    """Return int64[size] ids below `values`, id k with a frequency proportional to (k + 1) ** -1.05."""
    if values < 3:
        return rng.integers(0, values, size)
    power = 1.0 - SKEW
    drawn: NDArray[np.float64] = ((float(values) ** power - 1.0) * rng.random(size) + 1.0) ** (1.0 / power) - 1.0
    return np.minimum(drawn.astype(np.int64), values - 1)


def batch(rng: np.random.Generator, cardinalities: Sequence[int], samples: int, skewed: bool) -> Ids:
    """Return int64[features, samples] ids of a batch with one id per feature and sample."""
    return np.stack([zipf(rng, each, samples) if skewed else rng.integers(0, each, samples) for each in cardinalities])


def distinct(rng: np.random.Generator, values: int, size: int, skewed: bool) -> Ids:
    """Return int64 distinct ids below `values` in random order: `size` ids, or those among `size` skewed draws."""
    if skewed:
        return rng.permutation(np.unique(zipf(rng, values, size)))
    if size * 4 > values:
        return rng.choice(values, size, replace=False, shuffle=True)
    # Few of many, without an array of all of them.
    return rng.permutation(np.unique(rng.integers(0, values, size + size // 2 + 16)))[:size]


def keys_of(ids: Ids, table: int = 0) -> Keys:
    """Return uint64 keys of one table's ids."""
    keys = np.empty(ids.size, np.uint64)
    salts = np.array([table_salt(_name(number)) for number in range(table + 1)], np.uint64)
    hashing.hash_ids(ids.astype(np.uint64), np.full(ids.size, table, np.uint16), salts, keys)
    return keys


def layout_of(
    dim: int, kind: OptimizerKind, capacity: int, features: int = 1, names_left: bool = False
) -> EmbeddingLayout:
    """Return the layout of one table of float32 rows per feature, all in one feature group.

    With `names_left`, keys that lose their rows are noted, which cuts need. Look-ups are counted, which is the default
    (`when_full: auto`).
    """
    tables = tuple(TableSpec(_name(n), n, table_salt(_name(n)), init_bound=0.01) for n in range(features))
    optimizer = RowOptimizer(kind, lr=LR, eps=EPS)
    partitions = partitions_for(capacity, PARTITIONS)
    epoch_bits = epoch_bits_for(capacity, 26 * BATCH)
    group = GroupSpec(
        0, dim, optimizer, tables, capacity, partitions, counts_uses=True, epoch_bits=epoch_bits, names_left=names_left
    )
    return EmbeddingLayout((group,), tuple(FeatureSpec(each.name, 0, each.number, "sum") for each in tables), seed=0)


def _name(table: int) -> str:
    return f"feature-{table}"


def filled(dim: int, kind: OptimizerKind, rows: int, names_left: bool = False) -> Shard:
    """Return a shard with the rows of ids 0 … rows - 1 in random order."""
    shard = Shard(layout_of(dim, kind, int(rows / LOAD), names_left=names_left), 0, 1)
    ids = np.random.default_rng(1).permutation(rows)
    for start in range(0, rows, CHUNK):
        part = request(ids[start : start + CHUNK])
        shard.look_up(0, part.keys, part.tables, 0, True)
    return shard


def request(ids: Ids) -> RowRequest:
    """Return the request for some ids."""
    return RowRequest(ids, keys_of(ids), np.zeros(ids.size, np.uint16))


def requests(rows: int, size: int, skewed: bool, count: int) -> list[RowRequest]:
    """Return a series of requests: distinct ids of `rows`, uniform, or the distinct ones of `size` skewed draws."""
    rng = np.random.default_rng(2)
    return [request(distinct(rng, rows, min(size, rows), skewed)) for _ in range(count)]


def gradients(size: int, dim: int) -> Block:
    """Return uint8[size, row_bytes] random float32 gradients in the layout of messages."""
    values = np.random.default_rng(3).standard_normal((size, dim), np.float32) * np.float32(1e-3)
    assert row_bytes(dim, "float32") == dim * 4
    return values.view(np.uint8)


def train(shard: Shard, requests: Sequence[RowRequest], sent: Block) -> None:
    """Look up and update each request, as a batch of training does."""
    for number, request in enumerate(requests):
        shard.look_up(0, request.keys, request.tables, 1, True, batch=number)
        shard.update(0, request.keys, request.tables, sent[: request.ids.size], 1, batch=number)


def rows_that_fit(rows: int, dim: int, kind: OptimizerKind, extra: int = 0, spare: float = SPARE) -> tuple[int, str]:
    """Return at most `rows` rows that fit this machine's memory, and a note if they are fewer.

    Each row takes the store's memory at its load, and `extra` bytes for the baselines.
    """
    each = row_width(dim, "float32", RowOptimizer(kind, lr=LR)) * 4 + INDEX_BYTES / LOAD + extra
    fits = int(available_bytes() * spare / each)
    if fits >= rows:
        return rows, ""
    return fits, f"{fits:,} rows instead of {rows:,}: {available_bytes() / 2**30:.1f} GiB of memory are free"


def millions(requests: Sequence[RowRequest]) -> float:
    """Return the keys of requests, in millions."""
    return sum(request.ids.size for request in requests) / 1e6


def label(rows: int) -> str:
    """Return a number of rows as names of results have it, in millions."""
    return f"{rows / 1e6:.3g}".rstrip(".") + "M rows"
