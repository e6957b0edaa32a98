"""Small shards, names that collide in them, and the comparison of a shard with its plain twin."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.kernels.table.index import find_and_touch
from persia_cli.kernels.table.slots import LoadCounts
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, Schedule, TableSpec, table_salt
from persia_cli.store.row_store import RowStore
from persia_cli.store.shard import Shard
from tests import naive_store

SEED = 11
TABLES = (
    TableSpec("user", 0, table_salt("user"), 0.01),
    TableSpec("item", 2, table_salt("item"), 1.0),
    TableSpec("shop", 3, table_salt("shop"), 0.5),
)
SGD = RowOptimizer("sgd", lr=0.5)
WARM = Schedule("cosine", warmup_steps=3, over_steps=20, floor=0.1)
OPTIMIZERS = (
    SGD,
    RowOptimizer("sgd", lr=0.5, l2=0.01, clip_norm=1.5, schedule=Schedule("step", 2, 3, 0.5)),
    RowOptimizer("adagrad", lr=0.5, initial_accumulator_value=0.25, eps=1e-8, weight_bound=1.0),
    RowOptimizer("rowwise_adagrad", lr=0.5, l2=0.1, weight_decay=0.05, eps=1e-8, schedule=WARM, clip_norm=0.5),
    RowOptimizer("adam", lr=0.5, eps=1e-8, beta1=0.8, beta2=0.9),
    RowOptimizer("ftrl", lr=0.5, beta=1.0, l1=0.01, l2=0.1, initial_accumulator_value=0.1, schedule=WARM),
    RowOptimizer("ftrl", lr=0.1, l1=1.0),
    RowOptimizer("rowwise_adam", lr=0.5, l2=0.1, weight_decay=0.05, eps=1e-8, beta2=0.9, schedule=WARM),
)
BY_KIND = {each.kind: each for each in reversed(OPTIMIZERS)}
"""The first optimizer of each kind."""
Name = tuple[int, int]
"""Key and table number."""


class StoredRows(NamedTuple):
    """All rows of a store, ordered by key, then table number."""

    keys: NDArray[np.uint64]
    tables: NDArray[np.uint16]
    rows: NDArray[np.int64]
    last_used: NDArray[np.int64]


def rows_in(store: RowStore) -> StoredRows:
    """The contents of the buckets of a store's index; see `persia_cli.kernels.table.buckets`."""
    words, marks = store.index.buckets.reshape(-1, 8), store.index.marks.reshape(-1, 16)
    taken = marks[:, 8:12] != 0
    keys, rows = words[:, :4][taken], marks[:, 8:12][taken].astype(np.int64) - 1
    tables, last_used = store.index.tables[rows], marks[:, 12:16][taken].astype(np.int64)
    order = np.lexsort((tables, keys))
    return StoredRows(keys[order], tables[order], rows[order], last_used[order])


def layout_of(
    dim: int = 3,
    capacity: int = 100,
    partitions: int = 8,
    optimizer: RowOptimizer = OPTIMIZERS[2],
    tables: Sequence[TableSpec] = TABLES[:2],
    admission: float = 1.0,
    dtype: Any = "float32",
    wire: Any = "float32",
    min_count: int = 1,
    epoch_bits: int = 2,
    **settings: Any,
) -> EmbeddingLayout:
    """Return a layout of one group."""
    tables = tuple(replace(table, admission=admission, min_count=min_count) for table in tables)
    settings.setdefault("when_full", "evict_lru")
    counts_uses = settings["when_full"] in ("auto", "evict_lfu")
    group = GroupSpec(0, dim, optimizer, tables, capacity, partitions, dtype, wire, counts_uses, epoch_bits)
    return EmbeddingLayout((group,), (), **{"seed": SEED, **settings})


def arrays(names: Iterable[Name]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """Keys and table numbers of names."""
    names = list(names)
    return np.array([key for key, _ in names], np.uint64), np.array([table for _, table in names], np.uint16)


def find_rows(store: RowStore, keys: NDArray[np.uint64], tables: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Return the row of each (key, table), int64[n], -1 if it has none."""
    rows = np.empty(keys.size, np.int64)
    find_and_touch(store.index, keys, tables, 0, rows)  # step 0 raises no step of last use
    return rows


def insert(store: RowStore, names: Iterable[Name], last_used: NDArray[np.int64], parts: dict[str, Any]) -> int:
    """Insert rows into a store alone, where those used longer ago are evicted; returns how many were there already."""
    counts = LoadCounts(*np.zeros((2, len(TABLES) + 10), np.int64))
    return store.insert(*arrays(names), last_used, parts, True, counts)


def colliding(layout: EmbeddingLayout, count: int) -> list[int]:
    """Insert rows into a store, where older rows are evicted; return the number of existing keys."""
    twin, rng = naive_store.Store(layout), np.random.default_rng(0)
    wanted = twin.candidates(int(rng.integers(2**64, dtype=np.uint64)))
    found: list[int] = []
    while len(found) < count:
        tried = rng.integers(2**64, size=1000, dtype=np.uint64).tolist()
        found += [key for key in tried if all(map(is_, twin.candidates(key), wanted))]
    return found[:count]


def slots_of(store: RowStore) -> list[list[tuple[int, int, int, int]]]:
    """(key, table, row, last_used) of the taken slots of each bucket, read from the raw memory of the index."""
    keys = store.index.buckets.reshape(-1, 8)[:, :4]
    marks = store.index.marks.reshape(-1, 16)
    taken = marks[:, 8:12] != 0
    # Slots are taken from the first on.
    assert (taken == (np.arange(4) < taken.sum(1)[:, None])).all()
    buckets: list[list[tuple[int, int, int, int]]] = [[] for _ in keys]
    for bucket, place in np.argwhere(taken).tolist():
        row = int(marks[bucket, 8 + place]) - 1
        slot = (int(keys[bucket, place]), int(store.index.tables[row]), row, int(marks[bucket, 12 + place]))
        buckets[bucket].append(slot)
    return buckets


def compare_store(store: RowStore, twin: naive_store.Store) -> None:
    """Require equal slots, rows, states and steps of last use, to the bit, and consistent counts of the store."""
    slots = slots_of(store)
    theirs = [bucket for partition in twin.buckets.values() for bucket in partition]
    assert [[(key, table, last_used) for key, table, _, last_used in bucket] for bucket in slots] == [
        [(*row.name, row.last_used) for row in bucket] for bucket in theirs
    ]
    assert store.index.fill.tolist() == [sum(map(len, partition)) for partition in twin.buckets.values()]
    rows = np.array([row for bucket in slots for _, _, row, _ in bucket], np.int64)
    assert sorted(rows.tolist()) == list(range(store.used))
    expected = twin.rows()
    names = [row.name for row in expected]
    assert len(set(names)) == len(names)
    assert find_rows(store, *arrays(names)).tolist() == rows.tolist()
    parts = store.read_rows(rows)
    columns = twin.group.vectors
    assert {name: part.shape for name, part in parts.items()} == {
        name: (rows.size, width) for name, width in columns.items()
    }
    for at, row in enumerate(expected):
        for name, values in {"embedding": row.embedding, **row.states}.items():
            np.testing.assert_array_equal(parts[name][at], values, strict=True)


def compare_frequencies(store: RowStore, twin: naive_store.Store) -> None:
    """Require equal numbers of look-ups of ids with and without a row."""
    index = store.index
    if index.uses.size:
        words = [(row.count << 24) | (row.counted % 2**24) for row in twin.rows()]
        rows = find_rows(store, *arrays([row.name for row in twin.rows()]))
        assert index.uses[rows].tolist() == words
    if index.sketch.size:
        lines = index.sketch.reshape(-1, 8)
        first = store.partitions.start * store.group.sketch_lines
        found = {
            first + at: (int(line[0]), line[1:].view(np.uint8).tolist())
            for at, line in enumerate(lines)
            if line[1:].any()
        }
        assert found == twin.sketch.lines


def compare_counts(shard: Shard, twin: naive_store.Store) -> None:
    """Require counters that equal the twin's and add up."""
    for number, table in twin.tables.items():
        counters, counts = shard.counters()[table.name], twin.counts[number]
        for name in ("hits", "admitted", "refused", "not_admitted", "evicted", "expired", "left_out"):
            assert getattr(counters, name) == counts[name], name
        assert counters.gradients_missing == counts["gradients_missing"]
        assert counters.gradients_refused == counts["gradients_refused"]
        assert counters.misses == counters.admitted + counters.refused + counters.not_admitted
        assert counters.rows == counters.admitted + counts["loaded"] - counters.evicted
        assert counters.rows == sum(row.name[1] == number for row in twin.rows())
        assert counters.bytes == counters.rows * twin.group.width * 4


def compare(shard: Shard, twin: naive_store.Store) -> None:
    """Require that the shard equals its twin."""
    compare_store(shard.stores[0], twin)
    compare_frequencies(shard.stores[0], twin)
    compare_counts(shard, twin)
