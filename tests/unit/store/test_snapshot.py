"""Shards saved, opened by others, and loaded under another number of servers."""

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from persia_cli.errors import CheckpointError
from persia_cli.store import snapshot
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, RowOptimizer, TableSpec, table_salt
from persia_cli.store.shard import Shard
from persia_cli.store.snapshot import load_shard, save_shard
from tests import naive

TABLES = tuple(TableSpec(name, number, table_salt(name), 0.1) for number, name in enumerate("abc"))
IDS = [0, 2**64 - 1, 5, 6, 7, 8, 5 ^ TABLES[0].salt ^ TABLES[1].salt]
ADAM = RowOptimizer("adam", 0.1, eps=1e-8)


def layout_of(dim=3, optimizer=ADAM, tables=TABLES[:2], partitions=8, capacity=100):
    groups = (
        GroupSpec(0, dim, optimizer, tables, capacity),
        GroupSpec(1, 5, RowOptimizer("sgd", 0.1), TABLES[2:], capacity),
    )
    return EmbeddingLayout(groups, (), partitions, 1)


def trained(layout, servers, ids=IDS):
    """Shards with rows of all tables, trained for two steps."""
    shards = [Shard(layout, server, servers) for server in range(servers)]
    for group in layout.groups:
        for table in group.tables:
            keys = naive.keys_of(table.salt, ids)
            owners = np.array([naive.server_of(int(key), layout.num_partitions, servers) for key in keys])
            for server, shard in enumerate(shards):
                own = keys[owners == server]
                tables = np.full(own.size, table.number, np.uint16)
                rows = shard.look_up(group.number, own, tables, 3, create=True)
                shard.update(group.number, own, tables, rows, 3)
                shard.update(group.number, own[:2], tables[:2], rows[:2], 9)
    return shards


def contents(shards):
    """{(table name, id): (score, row)} of shards."""
    found = {}
    for shard in shards:
        names = {table.number: table.name for table in shard.layout.tables()}
        for store in shard.stores:
            keys, tables, rows = store.in_window(store.first, store.first + store.span)
            ids = np.empty_like(keys)
            snapshot.hashing.recover_ids(keys, tables, shard.salts, ids)
            width = (1 + len(store.group.optimizer.states)) * store.group.dim
            for id_, table, row in zip(ids.tolist(), tables.tolist(), rows, strict=True):
                score = int(store.scores(rows[rows == row])[0])
                found[names[table], id_] = (score, store.values()[row, :width].tobytes())
    return found


def save(shards, directory):
    return [file for shard in shards for file in save_shard(shard, directory)]


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("others", [1, 2, 5])
def test_any_number_of_servers_loads_what_any_number_saved(tmp_path, servers, others):
    layout = layout_of()
    shards = trained(layout, servers)
    files = save(shards, tmp_path)
    sums = {file.name: file.sha256 for file in files}
    loaded = [Shard(layout, server, others) for server in range(others)]
    counts = [load_shard(shard, tmp_path, [file.name for file in files], sums) for shard in loaded]
    assert sum(counts) == sum(file.rows for file in files) == 3 * len(IDS)
    assert contents(loaded) == contents(shards)
    assert sum(shard.counters()["a"].rows for shard in loaded) == len(IDS)
    assert all(shard.counters()["a"].created == shard.counters()["a"].misses == 0 for shard in loaded)


def test_pandas_opens_a_saved_file(tmp_path):
    (shard,) = trained(layout_of(), 1)
    saved = save_shard(shard, tmp_path)
    assert [file.name for file in saved] == [f"group-{number}-partitions-0000-0007.arrow" for number in (0, 1)]
    frame = pd.read_feather(tmp_path / saved[0].name)
    assert list(frame.columns) == ["table", "id", "score", "embedding", "adam_mean", "adam_square"]
    assert set(zip(frame.table, frame.id, strict=True)) == {(name, id_) for name in "ab" for id_ in IDS}
    assert frame.id.dtype == np.uint64
    assert sorted(frame.score.unique()) == [3, 9]
    everything = contents([shard])
    for row in frame.itertuples():
        values = np.concatenate([row.embedding, row.adam_mean, row.adam_square])
        assert everything[row.table, row.id] == (row.score, values.tobytes())


def test_files_are_described_and_do_not_depend_on_the_order_of_arrival(tmp_path):
    one, other = trained(layout_of(), 1), trained(layout_of(), 1, IDS[2:] + IDS[:2])
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    for shards, ids in ((one, IDS), (other, IDS[::-1])):
        keys = naive.keys_of(TABLES[0].salt, ids)
        shards[0].look_up(0, keys, np.zeros(keys.size, np.uint16), 20, create=True)
        shards[0].stores[0].set_scores(np.arange(2 * len(IDS)), np.full(2 * len(IDS), 20))
    store = other[0].stores[0]
    for shard in (one[0], other[0]):
        store = shard.stores[0]
        store.values()[: store.used] = 1.0
    files = [save_shard(shards[0], tmp_path / name)[0] for shards, name in ((one, "one"), (other, "other"))]
    assert (files[0].folder, files[1].folder) == ("one", "other")
    assert files[0] == replace(files[1], folder="one")
    data = (tmp_path / "one" / files[0].name).read_bytes()
    assert (files[0].nbytes, files[0].sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_many_record_batches_and_full_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "ROWS_PER_BATCH", 10)
    layout = layout_of(capacity=1500)
    shards = trained(layout, 1, list(range(500)))
    files = save(shards, tmp_path)
    with pa.OSFile(str(tmp_path / files[0].name)) as file:
        reader = pa.ipc.open_file(file)
        assert reader.num_record_batches == 100
        keys = np.concatenate([reader.get_batch(i).column("id").to_numpy() for i in range(100)])
    assert keys.size == 1000
    loaded = Shard(layout, 0, 1)
    assert load_shard(loaded, tmp_path, [file.name for file in files]) == 1500
    assert contents([loaded]) == contents(shards)


def test_an_empty_shard_saves_and_loads(tmp_path):
    layout = layout_of()
    files = save_shard(Shard(layout, 0, 1), tmp_path)
    assert [file.rows for file in files] == [0, 0]
    assert load_shard(Shard(layout, 0, 1), tmp_path, [file.name for file in files]) == 0


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        (layout_of(dim=4), "of dim 3; the config's tables"),
        (layout_of(optimizer=RowOptimizer("sgd", 0.1)), "columns embedding, adam_mean, adam_square"),
        (layout_of(optimizer=RowOptimizer("adagrad", 0.1)), "embedding, adagrad_sum of dim 3"),
        (layout_of(tables=TABLES[:1]), "table 'b', which the config does not have"),
        (layout_of(partitions=16), "embedding.num_partitions=8"),
        (layout_of(capacity=10), "does not fit"),
    ],
)
def test_rows_of_another_model_are_refused(tmp_path, layout, complaint):
    files = save(trained(layout_of(), 1), tmp_path)
    with pytest.raises(CheckpointError, match=complaint):
        load_shard(Shard(layout, 0, 1), tmp_path, [file.name for file in files])


def test_a_file_that_is_listed_twice_is_refused(tmp_path):
    layout = layout_of()
    files = save(trained(layout, 1), tmp_path)
    with pytest.raises(CheckpointError, match="there already"):
        load_shard(Shard(layout, 0, 1), tmp_path, [files[0].name, files[0].name])


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text", "missing", "other columns"])
def test_a_damaged_file_is_refused(tmp_path, damage):
    layout = layout_of()
    file = save(trained(layout, 1), tmp_path)[0]
    path = tmp_path / file.name
    data = path.read_bytes()
    broken = {"cut": data[: len(data) // 2], "empty": b"", "text": b"id,score\n1,2\n"}
    if damage == "missing":
        path.unlink()
    elif damage == "other columns":
        pd.DataFrame({"id": [1]}).to_feather(path)
    elif damage == "flip":
        path.write_bytes(data[:900] + bytes([data[900] ^ 1]) + data[901:])
    else:
        path.write_bytes(broken[damage])
    sums = {file.name: file.sha256} if damage == "flip" else {}
    with pytest.raises(CheckpointError, match=file.name):
        load_shard(Shard(layout, 0, 1), tmp_path, [file.name], sums)


@pytest.mark.parametrize("change", [("score", pa.array([-1, 0], pa.int64())), ("embedding", pa.float64())])
def test_values_that_no_shard_writes_are_refused(tmp_path, change):
    layout = layout_of()
    file = save(trained(layout, 1, IDS[:1]), tmp_path)[0]
    table = pa.ipc.open_file(tmp_path / file.name).read_all()
    place = table.schema.get_field_index(change[0])
    if change[0] == "score":
        table = table.set_column(place, "score", change[1])
    else:
        wide = table.column(place).cast(pa.list_(change[1], 3))
        table = table.set_column(place, "embedding", wide)
    with pa.OSFile(str(tmp_path / file.name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CheckpointError, match=file.name):
        load_shard(Shard(layout, 0, 1), tmp_path, [file.name])
