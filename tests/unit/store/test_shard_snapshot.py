"""A snapshot that is taken while the shard changes equals a save at its start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.store.checkpoints.row_files import write_portions
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, OptimizerKind, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import ShardSnapshot, SnapshotRows, StoreSnapshot
from tests import naive
from tests.support.saving import save_shard
from tests.support.shards import rows_in

TABLES = tuple(TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("abc"))
GROUPS = ((0, TABLES[:2]), (1, TABLES[2:]))


def layout_of(optimizer: str = "adagrad", dtype: Any = "float32", dim: int = 3, capacity: int = 24) -> EmbeddingLayout:
    """Two groups of four partitions with few rows, so that new keys soon take the rows of others."""
    first = GroupSpec(0, dim, RowOptimizer(optimizer, 0.1), TABLES[:2], capacity, 4, dtype)
    second = GroupSpec(1, 5, RowOptimizer("sgd", 0.1), TABLES[2:], capacity, 4)
    return replace(EmbeddingLayout((first, second), (), 1), when_full="evict_lru")


Op = tuple[str, int, frozenset[int], int]
"""An action (look-up, update, both, read, portion), its group, its ids, and since how many steps."""
IDS = st.frozensets(st.integers(0, 40), min_size=1, max_size=12)
OPS = st.lists(
    st.tuples(st.sampled_from(["look up", "update", "train", "read", "portion"]), st.integers(0, 1), IDS, st.just(0)),
    max_size=30,
)


class Driver:
    """Does the same to any shard, step by step."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.step, self.batch = shard, 0, 0

    def do(self, kind: str, group: int, ids: frozenset[int]) -> None:
        tables = np.array([GROUPS[group][1][id_ % len(GROUPS[group][1])].number for id_ in sorted(ids)], np.uint16)
        keys = np.array(
            [naive.keys_of(TABLES[table].salt, [id_])[0] for id_, table in zip(sorted(ids), tables, strict=True)],
            np.uint64,
        )
        self.step += 1
        self.batch += 1
        kept = self.batch if kind == "train" else None
        if kind in ("look up", "train"):
            self.shard.look_up(group, keys, tables, self.step, True, kept)
        if kind in ("update", "train"):
            dim = self.shard.stores[group].group.dim
            gradients = np.random.default_rng(self.step).normal(size=(keys.size, dim)).astype(np.float32)
            self.shard.update(group, keys, tables, gradients, self.step, kept)
        if kind == "read":
            self.shard.look_up(group, keys, tables, self.step, False)


class Taken:
    """The portions of a snapshot in order; they must not be lost while there is no space."""

    def __init__(self, cut: ShardSnapshot) -> None:
        self.cut = cut
        cut.make_space = self.take
        self.of_group: dict[int, list[SnapshotRows]] = {0: [], 1: []}

    def take(self) -> None:
        group, portion, _ = self.cut.next_portion()
        self.of_group[group].append(portion)

    def portions(self, group: int) -> Iterator[SnapshotRows]:
        while not self.cut.over:
            self.take()
        return iter(self.of_group[group])


def contents(shard: Shard) -> set[tuple[str, int, int, bytes]]:
    """Every row of a shard by the index and the arena: table, key, step of last use, embedding and states."""
    found = set()
    for store in shard.stores:
        keys, tables, rows, last_used = rows_in(store)
        parts = store.read_rows(rows)
        for i, (key, table, used) in enumerate(zip(keys.tolist(), tables, last_used.tolist(), strict=True)):
            found.add((TABLES[table].name, key, used, values_at(parts, i)))
    return found


def values_at(parts: dict[str, Any], row: int) -> bytes:
    return b"".join(part[row].tobytes() for part in parts.values())


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check(before: list[Op], during: list[Op], layout: EmbeddingLayout, places: int | None, small: bool) -> int:
    """Compare a snapshot taken during `during` with a save before it; returns how often rows had to be taken."""
    busy, still = Driver(Shard(layout, 0, 1)), Driver(Shard(layout, 0, 1))
    for number, (kind, group, ids, _) in enumerate(before):
        if number == len(before) // 2:
            # Another snapshot, which is dropped when the next one begins: it leaves the memory that it has used.
            Taken(busy.shard.begin_snapshot(places))
        for driver in (busy, still):
            if kind != "portion":
                driver.do(kind, group, ids)
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        at_the_cut = contents(still.shard)
        saved = save_shard(still.shard, Path(one))
        taken = Taken(busy.shard.begin_snapshot(places))
        for kind, group, ids, _ in during:
            if kind == "portion":
                if not taken.cut.over:
                    taken.take()
                continue
            busy.do(kind, group, ids)
            still.do(kind, group, ids)
        pauses = taken.cut.pauses
        listed = write_portions(busy.shard, taken.portions, Path(other), lambda rows: None)
        busy.shard.end_snapshot()
        assert bytes_of(Path(other)) == bytes_of(Path(one))
        assert [replace_folder(file) for file in listed] == [replace_folder(file) for file in saved]
        if small:
            rows = {
                (TABLES[portion.tables[i]].name, portion.keys[i], int(portion.last_used[i]), values_at(parts, i))
                for group, portions in taken.of_group.items()
                for portion in portions
                for parts in [portion.parts(layout.groups[group])]
                for i in range(portion.keys.size)
            }
            assert at_the_cut == rows
    assert contents(busy.shard) == contents(still.shard), "a cut changes nothing of what the shard computes"
    assert busy.shard.counters() == still.shard.counters()
    return pauses


def replace_folder(file: Any) -> Any:
    """A saved file without its folder, which is a temporary one here."""
    return (file.name, file.nbytes, file.xxh128, file.rows)


@given(
    OPS,
    OPS,
    st.sampled_from(get_args(OptimizerKind)),
    st.integers(0, 8) | st.none(),
)
@settings(max_examples=50)
def test_the_file_is_that_of_the_snapshot_after_any_changes(
    before: list[Op], during: list[Op], optimizer: str, places: int | None
) -> None:
    check(before, during, layout_of(optimizer), places, small=True)


@pytest.mark.slow
@given(OPS, OPS, st.sampled_from(["float16", "bfloat16", "int8"]), st.integers(0, 3), st.sampled_from([1, 16, 17, 64]))
@settings(max_examples=2000)
def test_every_dtype_and_dim(before: list[Op], during: list[Op], dtype: str, places: int, dim: int) -> None:
    check(before, during, layout_of("adam", dtype, dim, capacity=16), places, small=True)


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("places", [0, 1, 7, None])
def test_every_row_changes_and_goes_before_its_turn(places: int | None, dim: int) -> None:
    fill = [("train", group, frozenset(range(start, start + 12)), 0) for group in (0, 1) for start in (0, 12, 24)]
    pauses = check(
        fill, [("train", group, ids, 0) for _, group, ids, _ in [*fill[::-1], *fill]], layout_of(dim=dim), places, True
    )
    assert pauses > 0 if places is not None else pauses == 0


def test_a_shortage_of_space_is_reported_early() -> None:
    driver = Driver(Shard(layout_of(capacity=64), 0, 1))
    ids = np.arange(12, dtype=np.uint64)
    keys, tables = naive.keys_of(TABLES[0].salt, ids.tolist()), np.zeros(12, np.uint16)
    driver.shard.look_up(0, keys, tables, 1, True)
    cut = driver.shard.begin_snapshot(cells=4)
    assert cut.has_space(0, keys[:4], tables[:4])
    assert not cut.has_space(0, keys[:5], tables[:5])
    driver.shard.look_up(0, keys[:4], tables[:4], 2, True)
    assert cut.has_space(0, keys[:4], tables[:4]), "they are kept already"
    assert not cut.has_space(0, keys[:5], tables[:5])
    while not cut.over:
        cut.next_portion()
    assert cut.has_space(0, keys, tables)
    assert cut.pauses == 0


@pytest.mark.parametrize("since", [0, 3, 4, 99])
def test_rows_used_since_a_step_are_found(since: int) -> None:
    driver = Driver(Shard(layout_of(capacity=64), 0, 1))
    for first in (0, 8, 4):
        driver.do("train", 0, frozenset(range(first, first + 6)))
    store, found = driver.shard.stores[0], StoreSnapshot(driver.shard.stores[0], since)
    keys, _, _, last_used = rows_in(store)
    used = []
    while not found.over:
        used += found.next_portion().keys.tolist()
    assert sorted(used) == keys[last_used >= since].tolist()
