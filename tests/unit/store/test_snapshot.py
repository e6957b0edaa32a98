"""Shards saved, opened by others, and loaded under another number of servers and partitions."""

import resource
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from xxhash import xxh128

from persia_cli.errors import CheckpointError, DiskError
from persia_cli.kernels.rows import hashing
from persia_cli.store.checkpoints import row_files as snapshot
from persia_cli.store.checkpoints.row_files import Progress, load_shard
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.layout import (
    EmbeddingLayout,
    GroupSpec,
    RowOptimizer,
    TableSpec,
    partition_owners,
    table_salt,
)
from persia_cli.store.shard import Shard
from tests import naive
from tests.naive_optimizers import rounded
from tests.support.saving import save_shard
from tests.support.shards import BY_KIND, rows_in

TABLES = tuple(TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("abc"))
IDS = [0, 2**64 - 1, 5, 6, 7, 8, 5 ^ TABLES[0].salt ^ TABLES[1].salt]
ADAM = RowOptimizer("adam", 0.1, eps=1e-8)
DTYPES = ("float32", "bfloat16", "float16", "int8")


def layout_of(dim=3, optimizer=ADAM, tables=TABLES[:2], partitions=8, capacity=200, dtype="float32"):
    """Two groups; the second has one partition, so that of several servers only the first has rows of it."""
    groups = (
        GroupSpec(0, dim, optimizer, tables, capacity, partitions, dtype),
        GroupSpec(1, 5, RowOptimizer("sgd", 0.1), TABLES[2:], capacity, 1),
    )
    return EmbeddingLayout(groups, (), 1)


def owners_of(group, servers, keys):
    """The server that owns each key."""
    partitions = ((keys >> np.uint64(32)) * np.uint64(group.partitions)) >> np.uint64(32)
    return partition_owners(group.partitions, servers)[partitions]


def trained(layout, servers, ids=IDS):
    """Shards with rows of all tables, trained for two steps."""
    shards = [Shard(layout, server, servers) for server in range(servers)]
    for group in layout.groups:
        for table in group.tables:
            keys = naive.keys_of(table.salt, ids)
            owners = owners_of(group, servers, keys)
            for server, shard in enumerate(shards):
                own = keys[owners == server]
                if not own.size:
                    continue
                tables = np.full(own.size, table.number, np.uint16)
                rows = shard.look_up(group.number, own, tables, 3, True)
                shard.update(group.number, own, tables, rows, 3)
                shard.look_up(group.number, own[:2], tables[:2], 9, True)
                shard.update(group.number, own[:2], tables[:2], rows[:2], 9)
    return shards


def contents(shards):
    """{(table name, id): (last_used, bytes of each vector)} of shards."""
    found = {}
    for shard in shards:
        names = {table.number: table.name for table in shard.layout.tables()}
        for store in shard.stores:
            keys, tables, rows, last_used = rows_in(store)
            ids = np.empty_like(keys)
            hashing.recover_ids(keys, tables, shard.salts, ids)
            vectors = store.read_rows(rows)
            for place, id_ in enumerate(ids.tolist()):
                values = {name: vector[place].tobytes() for name, vector in vectors.items()}
                assert (names[tables[place]], id_) not in found
                found[names[tables[place]], id_] = (int(last_used[place]), values)
    return found


def save(shards, directory):
    return [file for shard in shards for file in save_shard(shard, directory)]


def alone(directory, files):
    """Files of rows in a directory as what a checkpoint without a parent has."""
    return [RowFile(file.rows, (), ((directory / file.name, file),)) for file in files]


def as_is(file, path):
    """The entry of a file, with its present checksum."""
    data = path.read_bytes()
    return structs.replace(file, nbytes=len(data), xxh128=xxh128(data).hexdigest())


def load(layout, servers, directory, files):
    shards = [Shard(layout, server, servers) for server in range(servers)]
    counts = [load_shard(shard, alone(directory, files)) for shard in shards]
    assert sum(counts) == sum(file.rows.total for file in files)
    return shards


@settings(max_examples=30)
@given(
    kind=st.sampled_from([*BY_KIND]),
    dtype=st.sampled_from(DTYPES),
    ids=st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=30),
    dim=st.sampled_from([1, 3, 4, 17]),
    servers=st.integers(1, 4),
    others=st.integers(1, 4),
    partitions=st.sampled_from([1, 2, 8]),
)
def test_every_kind_of_row_comes_back_to_the_bit(kind, dtype, ids, dim, servers, others, partitions):
    layout = layout_of(dim, BY_KIND[kind], dtype=dtype)
    shards = trained(layout, servers, ids)
    with TemporaryDirectory() as folder:
        files = save(shards, Path(folder))
        other = layout_of(dim, BY_KIND[kind], dtype=dtype, partitions=partitions, capacity=500)
        loaded = load(other, others, Path(folder), files)
        assert contents(loaded) == contents(shards)
        counts = [shard.counters()["a"] for shard in loaded]
        assert sum(each.rows for each in counts) == len(ids)
        assert not any(each.admitted or each.misses for each in counts)
        again = load(layout, servers, Path(folder), files)
        for file in files:
            (Path(folder) / file.name).unlink()
        assert save(again, Path(folder)) == files


@pytest.mark.parametrize("dtype", DTYPES)
def test_pandas_opens_a_saved_file(tmp_path, dtype):
    (shard,) = trained(layout_of(dtype=dtype), 1)
    saved = save_shard(shard, tmp_path)
    assert [file.name for file in saved] == ["group-0-partitions-0000-0007.arrow", "group-1-partitions-0000-0000.arrow"]
    frame = pd.read_feather(tmp_path / saved[0].name)
    assert list(frame.columns) == ["table", "id", "last_used", "embedding", "adam_mean", "adam_square"]
    assert set(zip(frame.table, frame.id, strict=True)) == {(name, id_) for name in "ab" for id_ in IDS}
    assert frame.id.dtype == np.uint64
    assert sorted(frame.last_used.unique()) == [3, 9]
    everything = contents([shard])
    for row in frame.itertuples():
        vectors = {name: getattr(row, name) for name in ("embedding", "adam_mean", "adam_square")}
        assert all(vector.dtype == np.float32 for vector in vectors.values())
        expected = {name: vector.tobytes() for name, vector in vectors.items()}
        assert everything[row.table, row.id] == (row.last_used, expected)
    assert pa.ipc.open_file(tmp_path / saved[0].name).schema.metadata == {b"persia.partitions": b"8"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_float32_rows_are_rounded_to_the_nearest_stored_value(tmp_path, dtype):
    shards = trained(layout_of(), 1)
    files = save(shards, tmp_path)
    loaded = load(layout_of(dtype=dtype), 1, tmp_path, files)
    kept = contents(loaded)
    for name, (last_used, vectors) in contents(shards).items():
        embedding = np.frombuffer(vectors["embedding"], np.float32)
        expected = vectors | {"embedding": rounded(embedding, dtype).tobytes()} if name[0] != "c" else vectors
        assert kept[name] == (last_used, expected)


def test_rows_are_ordered_by_partition_key_and_table_in_any_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "ROWS_PER_BATCH", 10)
    layout = layout_of(capacity=1500)
    shards = trained(layout, 1, list(range(500)))
    told = []
    file = save_shard(shards[0], tmp_path, told.append)[0]
    frame = pd.read_feather(tmp_path / file.name)
    assert (len(frame), sum(told)) == (1000, 1500)
    assert max(told) <= 10
    numbers = frame["table"].map({"a": 0, "b": 1}).astype(int)
    keys = [naive.mix(int(id_) ^ TABLES[number].salt) for id_, number in zip(frame["id"], numbers, strict=True)]
    order = [(key * 8 >> 64, key, number) for key, number in zip(keys, numbers, strict=True)]
    assert order == sorted(order)
    loaded = load(layout, 1, tmp_path, [file])
    assert {name: row for name, row in contents(shards).items() if name[0] != "c"} == contents(loaded)


@pytest.mark.parametrize("when_full", ["evict_lru", "refuse"])
@pytest.mark.parametrize("servers", [1, 2])
def test_the_rows_of_a_full_store_are_loaded_again(tmp_path, when_full, servers):
    layout = replace(layout_of(capacity=1000, partitions=4), when_full=when_full)
    (shard,) = [Shard(layout, 0, 1)]
    for step in range(20):
        keys = naive.keys_of(TABLES[0].salt, range(step * 100, step * 100 + 200))
        shard.look_up(0, keys, np.zeros(keys.size, np.uint16), step, True)
    counters = shard.counters()["a"]
    assert counters.refused + counters.evicted > 500
    files = save([shard], tmp_path)
    assert contents(load(layout, servers, tmp_path, files)) == contents([shard])


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (layout_of(dim=4), "of dim 3; the config's tables"),
        (layout_of(optimizer=RowOptimizer("sgd", 0.1)), "columns embedding, adam_mean, adam_square"),
        (layout_of(optimizer=RowOptimizer("rowwise_adagrad", 0.1)), "embedding, adagrad_row_sum of dim 3: set model"),
        (layout_of(tables=TABLES[:1]), "table 'b', which the config does not have"),
        (layout_of(capacity=3, partitions=1), r"does not fit: there are at least [\d,]+ rows for this server"),
    ],
)
def test_rows_of_another_model_are_refused(tmp_path, layout, complaint):
    files = save(trained(layout_of(), 1), tmp_path)
    with pytest.raises(CheckpointError, match=complaint):
        load_shard(Shard(layout, 0, 1), alone(tmp_path, files))


def test_a_file_that_is_listed_twice_is_refused(tmp_path):
    layout = layout_of()
    files = save(trained(layout, 1), tmp_path)
    with pytest.raises(CheckpointError, match="loaded already"):
        load_shard(Shard(layout, 0, 1), alone(tmp_path, [files[0], files[0]]))


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"id,last_used\n1,2\n"),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: pd.DataFrame({"id": [1]}).to_feather(path),
    ],
    ids=["missing", "empty", "text", "cut", "other columns"],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    layout = layout_of()
    file = save(trained(layout, 1), tmp_path)[0]
    path = tmp_path / file.name
    damage(path)
    with pytest.raises(CheckpointError, match=file.name):
        load_shard(Shard(layout, 0, 1), alone(tmp_path, [file]))
    if path.exists():
        with pytest.raises(CheckpointError, match=file.name):
            load_shard(Shard(layout, 0, 1), alone(tmp_path, [as_is(file, path)]))


def test_a_file_is_read_once_and_a_changed_bit_anywhere_is_named_as_that(tmp_path):
    layout = layout_of()
    file = save(trained(layout, 1), tmp_path)[0]
    path, progress = tmp_path / file.name, Progress()
    load_shard(Shard(layout, 0, 1), alone(tmp_path, [file]), progress)
    assert progress.bytes_read == file.nbytes == path.stat().st_size
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(CheckpointError, match=f"{file.name} has changed since it was saved"):
            load_shard(Shard(layout, 0, 1), alone(tmp_path, [file]))


@pytest.mark.parametrize("change", [("last_used", pa.array([-1, 0], pa.int64())), ("embedding", pa.float64())])
def test_values_that_no_shard_writes_are_refused(tmp_path, change):
    layout = layout_of()
    file = save(trained(layout, 1, IDS[:1]), tmp_path)[0]
    table = pa.ipc.open_file(tmp_path / file.name).read_all()
    place = table.schema.get_field_index(change[0])
    if change[0] == "last_used":
        table = table.set_column(place, "last_used", change[1])
    else:
        wide = table.column(place).cast(pa.list_(change[1], 3))
        table = table.set_column(place, "embedding", wide)
    with pa.OSFile(str(tmp_path / file.name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CheckpointError, match=file.name):
        load_shard(Shard(layout, 0, 1), alone(tmp_path, [as_is(file, tmp_path / file.name)]))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tables": {"a": 6, "b": 7}}, "rows of its tables, but"),
        ({"tables": {"a": 7, "b": 6}}, "rows of its tables, but"),
        ({"tables": {"a": 7, "b": 7, "c": 1}}, "rows of its tables, but"),
        ({"stop": 7}, "rows of other partitions than 0 to 6"),
        ({"first": 1}, "rows of other partitions than 1 to 7"),
        ({"partitions": 16}, "rows of other partitions than 0 to 7"),
    ],
)
def test_rows_that_are_not_those_listed_are_refused(tmp_path, change, complaint):
    layout = layout_of()
    file = save(trained(layout, 1), tmp_path)[0]
    listed = structs.replace(file, rows=structs.replace(file.rows, **change))
    with pytest.raises(CheckpointError, match=complaint):
        load_shard(Shard(layout, 0, 1), alone(tmp_path, [listed]))


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        with pytest.raises(DiskError, match=r"cannot write .*group-0-.*\.arrow: it would be larger than files may be"):
            save(trained(layout_of(), 1), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
