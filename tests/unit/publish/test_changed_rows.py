"""The rows that changed since a cut, and the ids that left, make each cut of the one before."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import CheckpointError
from persia_cli.store import row_store
from persia_cli.store.checkpoints.row_files import write_portions
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from tests.support.saving import portions_of
from tests.support.shards import rows_in

TABLES = tuple(TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("ab"))
Rows = dict[tuple[str, int], bytes]
OPS = st.lists(
    st.tuples(st.sampled_from(["train", "look up", "read", "cut"]), st.frozensets(st.integers(0, 40), max_size=9)),
    max_size=40,
)  # fmt: skip


def shard_of(capacity: int, when_full: Any, expire_after: int | None) -> Shard:
    group = GroupSpec(
        0, 3, RowOptimizer("adagrad", 0.1), TABLES, capacity, 4, counts_uses=when_full == "evict_lfu", names_left=True
    )
    return Shard(EmbeddingLayout((group,), (), 1, when_full, expire_after), 0, 1)


def train(shard: Shard, step: int, ids: frozenset[int], kind: str) -> None:
    tables = np.array([id_ % 2 for id_ in sorted(ids)], np.uint16)
    keys = shard.keys_of(np.array(sorted(ids), np.uint64), tables)
    shard.look_up(0, keys, tables, step, kind != "read", step)
    if kind == "train":
        gradients = np.random.default_rng(step).normal(size=(keys.size, 3)).astype(np.float32)
        shard.update(0, keys, tables, gradients, step, step)


def rows_of(shard: Shard) -> Rows:
    """The embedding of each row, by table and id."""
    keys, tables, rows, _ = rows_in(shard.stores[0])
    ids, values = shard.ids_of(keys, tables), shard.stores[0].read_rows(rows)["embedding"]
    return {(TABLES[t].name, int(i)): v.tobytes() for t, i, v in zip(tables, ids, values, strict=True)}


def read(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all().to_pylist()


def apply(before: Rows, folder: Path) -> Rows:
    """The rows after a cut: those before it without the ids that left, and with its own."""
    [rows] = (folder / "embeddings").iterdir()
    [left] = (folder / "deleted").iterdir()
    gone = {(row["table"], row["id"]) for row in read(left)}
    changed = {(row["table"], row["id"]): np.array(row["embedding"], np.float32).tobytes() for row in read(rows)}
    assert not gone & changed.keys()
    return {key: value for key, value in before.items() if key not in gone} | changed


@given(OPS, OPS, st.sampled_from([16, 24, 200]), st.sampled_from(["evict_lru", "evict_lfu", "refuse"]),
       st.sampled_from([None, 3]))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_all_cuts_together_are_the_rows_of_the_last(ops, during, capacity, when_full, expire_after):
    """Also if rows change, are evicted or expire while the cut is written."""
    shard, rows, parent, step = shard_of(capacity, when_full, expire_after), {}, 0, 0
    for kind, ids in [*ops, ("cut", frozenset())]:
        if kind != "cut":
            train(shard, step, ids, kind)
            step += 1
            continue
        expected = rows_of(shard)
        with TemporaryDirectory() as folder:
            cut = shard.begin_snapshot(since=parent)
            parent = step
            taken = [cut.next_portion()[1]] if during and not cut.over else []
            for other, more in during[:5]:
                if other != "cut":
                    train(shard, step, more, other)
                    step += 1
            rest = portions_of(cut)
            portions = lambda group: [*taken, *(() if cut.over else rest(group))]  # noqa: B023, E731
            write_portions(shard, portions, Path(folder) / "embeddings", lambda rows: None, (), cut.left)
            shard.end_snapshot()
            rows = apply(rows, Path(folder))
        assert rows == expected


def test_more_evicted_ids_than_can_be_noted_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(row_store, "MAX_LEFT", 5)
    shard = shard_of(16, "evict_lru", None)
    for step in range(4):
        train(shard, step, frozenset(range(10 * step, 10 * step + 9)), "train")
    cut = shard.begin_snapshot(since=1)
    with pytest.raises(CheckpointError, match="more ids"):
        write_portions(shard, portions_of(cut), tmp_path / "embeddings", lambda rows: None, (), cut.left)
    cut = shard.begin_snapshot(since=4)
    assert [left.tolist() for left in cut.left[0]] == [[], []], "the next ones can be"


def test_a_cut_with_all_rows_names_no_evicted_ids_however_many_there_are(tmp_path, monkeypatch):
    """Otherwise a store that always loses many would never be published."""
    monkeypatch.setattr(row_store, "MAX_LEFT", 5)
    shard = shard_of(16, "evict_lru", None)
    for step in range(4):
        train(shard, step, frozenset(range(10 * step, 10 * step + 9)), "train")
    cut = shard.begin_snapshot(since=0)
    write_portions(shard, portions_of(cut), tmp_path / "embeddings", lambda rows: None, (), cut.left)
    assert apply({}, tmp_path) == rows_of(shard)
