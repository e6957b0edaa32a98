"""The first rows of a new shard against the saved files, which are read with pandas and placed by plain arithmetic."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persia_cli.errors import CheckpointError, DataError
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.checkpoints.warm_rows import WarmRows, new_states
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, partitions_of, table_salt
from persia_cli.store.shard import Shard
from tests import naive
from tests.support.saving import save_shard
from tests.support.shards import BY_KIND, find_rows
from tests.unit.store.test_snapshot import TABLES, layout_of, save, trained

NEW = ("a", "x", "y", "c")
"""Tables of the new run: two of them have the names of saved ones."""


def new_layout(
    optimizer: RowOptimizer, dim: int, partitions: int = 4, capacity: int = 400, dtype: str = "float32"
) -> EmbeddingLayout:
    tables = tuple(TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate(NEW))
    groups = (
        GroupSpec(0, dim, optimizer, tables[:3], capacity, partitions, dtype),
        GroupSpec(1, 5, RowOptimizer("sgd", 0.1), tables[3:], capacity, 2),
    )
    return EmbeddingLayout(groups, (), 2)


def saved_rows(folder: Path) -> dict[tuple[str, int], dict[str, bytes]]:
    """(table, id) -> bytes of each vector, as the files have them."""
    found = {}
    for path in sorted(folder.glob("*.arrow")):
        frame = pd.read_feather(path)
        for row in frame.to_dict("records"):
            vectors = {name: row[name].tobytes() for name in frame.columns[3:]}
            assert (row["table"], row["id"]) not in found
            found[row["table"], row["id"]] = vectors
    return found


def saved_again(shards: list[Shard]) -> tuple[dict[tuple[str, int], dict[str, bytes]], list[SavedFile], set[int]]:
    """Save shards; return the rows, the files and the distinct steps of last use."""
    with TemporaryDirectory() as folder:
        files = [file for shard in shards for file in save_shard(shard, Path(folder))]
        steps = {int(step) for path in Path(folder).glob("*.arrow") for step in pd.read_feather(path)["last_used"]}
        return saved_rows(Path(folder)), files, steps


def begun(
    layout: EmbeddingLayout,
    servers: int,
    folder: Path,
    files: list[SavedFile],
    tables: dict[str, list[str]],
    states: bool,
) -> list[Shard]:
    shards = [Shard(layout, server, servers) for server in range(servers)]
    loaded = 0
    for shard in shards:
        rows = WarmRows(shard, tables, states)
        rows.load([RowFile(file.rows, (), ((folder / file.name, file),)) for file in files if file.rows])
        loaded += rows.rows
    counts = {name: sum(file.rows.tables.get(name, 0) for file in files if file.rows) for name in tables}
    assert loaded == sum(counts[old] * len(new) for old, new in tables.items())
    return shards


MAPPINGS = st.fixed_dictionaries(
    {},
    optional={
        "a": st.lists(st.sampled_from(NEW[:3]), max_size=3, unique=True),
        "b": st.lists(st.sampled_from(NEW[:3]), max_size=3, unique=True),
        "c": st.just(["c"]),
    },
).filter(lambda tables: not set(tables.get("a", [])) & set(tables.get("b", [])))


@settings(max_examples=40)
@given(
    kind=st.sampled_from([*BY_KIND]),
    ids=st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=20),
    dim=st.sampled_from([1, 3, 4, 17]),
    servers=st.integers(1, 3),
    others=st.integers(1, 4),
    partitions=st.sampled_from([1, 4, 64]),
    tables=MAPPINGS,
    same=st.booleans(),
    states=st.booleans(),
)
def test_rows_come_to_the_tables_that_were_named(kind, ids, dim, servers, others, partitions, tables, same, states):
    optimizer = BY_KIND[kind]
    new_optimizer = optimizer if same else BY_KIND["adagrad" if kind != "adagrad" else "adam"]
    layout = new_layout(new_optimizer, dim, partitions)
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = save(trained(layout_of(dim, optimizer), servers, ids), folder)
        before = saved_rows(folder)
        shards = begun(layout, others, folder, files, tables, states)
    after, again, steps = saved_again(shards)
    expected = {}
    for (old, id_), vectors in before.items():
        for new in tables.get(old, []):
            group = layout.groups[1 if new == "c" else 0]
            own = {key: vectors[key] for key in vectors if key == "embedding" or (states and (same or new == "c"))}
            embedding = np.frombuffer(vectors["embedding"], np.float32)[None]
            fresh = {key: value.tobytes() for key, value in new_states(group, embedding).items()}
            expected[new, id_] = fresh | own
    assert after == expected
    assert steps <= {0}
    # Each row lies with the server that owns its key.
    for file in again:
        group = layout.groups[file.rows.group]
        own = [partitions_of(group.partitions, server, others) for server in range(others)]
        assert range(file.rows.first, file.rows.stop) in own


def test_new_rows_make_old_ones_go_first(tmp_path):
    """Check that rows that the saved run used last, long after these steps, are as old as all other loaded rows."""
    layout = layout_of(capacity=64, partitions=1)
    shard = Shard(layout, 0, 1)
    keys = naive.keys_of(TABLES[0].salt, list(range(50)))
    tables = np.zeros(50, np.uint16)
    shard.look_up(0, keys, tables, 900_000, True)
    files = save_shard(shard, tmp_path)
    (begun_shard,) = begun(layout, 1, tmp_path, files, {"a": ["a"]}, True)
    fresh = naive.keys_of(TABLES[0].salt, list(range(100, 124)))
    for step, key in enumerate(fresh):
        begun_shard.look_up(0, fresh[step : step + 1], tables[:1], step + 1, True)
        assert find_rows(begun_shard.stores[0], fresh[: step + 1], tables[: step + 1]).min() >= 0, key
    counters = begun_shard.counters()["a"]
    assert counters.evicted > 0
    assert counters.refused == 0


def test_a_damaged_file_is_refused_before_its_rows_are_used(tmp_path):
    files = save(trained(layout_of(), 1), tmp_path)
    path = tmp_path / files[0].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="has changed since it was saved"):
        begun(new_layout(BY_KIND["adam"], 3), 1, tmp_path, files, {"a": ["a"]}, True)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("kind", ["sgd", "adam", "ftrl"])
def test_vectors_become_rows_with_new_states(kind, servers):
    layout = new_layout(BY_KIND[kind], 3)
    draw = np.random.default_rng(0)
    ids = draw.integers(2**64, size=60, dtype=np.uint64)
    vectors = draw.normal(size=(60, 3)).astype(np.float32)
    shards = [Shard(layout, server, servers) for server in range(servers)]
    for shard in shards:
        rows = WarmRows(shard, {}, False)
        rows.add("x", ids[:40], vectors[:40], "file, row group 0", 0)
        rows.add("x", ids[40:], vectors[40:], "file, row group 1", 0)
    after, _, _ = saved_again(shards)
    assert {key: found["embedding"] for key, found in after.items()} == {
        ("x", id_): vector.tobytes() for id_, vector in zip(ids.tolist(), vectors, strict=True)
    }


def test_ftrl_preserves_the_initial_embedding():
    """One tiny gradient leaves a weight about where it was, though FTRL computes it from its states alone."""
    layout = new_layout(RowOptimizer("ftrl", 0.1, beta=1.0, l1=0.3, l2=0.2, initial_accumulator_value=0.1), 3)
    shard = Shard(layout, 0, 1)
    vectors = np.array([[0.5, -2.0, 0.0]], np.float32)
    WarmRows(shard, {}, False).add("x", np.array([7], np.uint64), vectors, "file", 0)
    keys, tables = naive.keys_of(table_salt("x"), [7]), np.ones(1, np.uint16)
    shard.update(0, keys, tables, np.full((1, 3), 1e-6, np.float32), 0)
    np.testing.assert_allclose(shard.values(0, keys, tables), vectors, atol=1e-5)


def test_ids_that_come_twice_are_named():
    layout = new_layout(BY_KIND["sgd"], 3)
    vectors = np.ones((4, 3), np.float32)
    rows = WarmRows(Shard(layout, 0, 1), {}, False)
    with pytest.raises(DataError, match=r"f\.parquet, row group 2: rows 101 and 103 have the same id 9; leave all but"):
        rows.add("x", np.array([1, 9, 3, 9], np.uint64), vectors, "f.parquet, row group 2", 100)
    rows = WarmRows(Shard(layout, 0, 1), {}, False)
    rows.add("x", np.array([1, 2, 3, 4], np.uint64), vectors, "f.parquet, row group 0", 0)
    with pytest.raises(DataError, match=r"row group 1: rows 0 to 3"):
        rows.add("x", np.array([5, 6, 4, 8], np.uint64), vectors, "f.parquet, row group 1", 0)
