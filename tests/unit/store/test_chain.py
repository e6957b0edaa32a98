"""A full save and the changes after it equal, row for row and byte for byte, a later full save."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from pyarrow import feather

from persia_cli.errors import CheckpointError
from persia_cli.store.checkpoints import merged_rows
from persia_cli.store.checkpoints.chain import Chain, is_divided, manifest_digest, newest_whole, read_chain
from persia_cli.store.checkpoints.changes import note_loaded, take_changes
from persia_cli.store.checkpoints.manifest import (
    DELETED,
    EMBEDDINGS,
    MANIFEST,
    Parent,
    begin_checkpoint,
    checkpoint_folder,
    publish,
    read_manifest,
    write_checked,
)
from persia_cli.store.checkpoints.retention import removable
from persia_cli.store.checkpoints.row_files import load_shard
from persia_cli.store.layout import EmbeddingLayout, partition_owners
from persia_cli.store.shard import Shard
from persia_cli.wire.reports import SavedFile
from tests import naive_store
from tests.support.saving import manifest_of, save_shard
from tests.support.shards import OPTIMIZERS, TABLES, arrays, colliding, layout_of

DTYPES = ["float32", "bfloat16", "float16", "int8"]
Name = tuple[int, int]
DIM = 3


class Servers:
    """Shards that together have all rows, and the checkpoints that they saved."""

    def __init__(self, layout: EmbeddingLayout, servers: int, checkpoints: Path) -> None:
        self.layout, self.checkpoints = layout, checkpoints
        self.shards = [Shard(layout, server, servers) for server in range(servers)]
        self.parent: Parent | None = None

    def own(self, names: list[Name]) -> Iterator[tuple[Shard, list[Name]]]:
        """Add its own names to each shard."""
        group = self.layout.groups[0]
        owners = partition_owners(group.partitions, len(self.shards))
        for number, shard in enumerate(self.shards):
            yield shard, [name for name in names if owners[name[0] * group.partitions >> 64] == number]

    def look_up(self, names: list[Name], step: int) -> None:
        for shard, own in self.own(names):
            shard.look_up(0, *arrays(own), step, True, step)

    def update(self, names: list[Name], step: int, gradients: dict[Name, Any]) -> None:
        for shard, own in self.own(names):
            values = np.array([gradients[name] for name in own], np.float32).reshape(len(own), DIM)
            shard.update(0, *arrays(own), values, step, step)

    def save(self, step: int, changes: bool) -> Path:
        """Save a checkpoint, of changes if requested and possible."""
        parent = self.parent if changes else None
        draft = begin_checkpoint(self.checkpoints, step)
        files: list[SavedFile] = []
        for shard in self.shards:
            known = take_changes(shard, step, parent.step if parent else None)
            files += save_shard(shard, draft / EMBEDDINGS, changes=known)
        if not any(file.rows and file.rows.changed_since is not None for file in files):
            parent = None
        final = publish(self.checkpoints, draft, manifest_of(self.layout, step, files, parent))
        assert isinstance(final, Path)
        self.parent = Parent(step, manifest_digest(final))
        return final

    def load(self, checkpoint: Path) -> "Servers":
        """Load a checkpoint; changes begin with it."""
        chain = read_chain(checkpoint)
        for shard in self.shards:
            load_shard(shard, chain.row_files(with_dense=True))
            note_loaded(shard, chain.manifest.step, bool(chain.manifest.cold_files(with_dense=True)))
        if is_divided(chain.manifest, self.layout, len(self.shards)):
            self.parent = Parent(chain.manifest.step, manifest_digest(checkpoint))
        return self

    def full(self, folder: Path) -> dict[str, bytes]:
        """The bytes of the files of a full save."""
        for shard in self.shards:
            save_shard(shard, folder)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def contents_of(chain: Chain) -> list[tuple[Any, ...]]:
    """Every row of a chain in its order."""
    found = []
    for file in chain.row_files(with_dense=True):
        file.verify()
        for batch in file.batches():
            columns = [column.to_pylist() for column in batch.columns]
            found += list(zip(*columns, strict=True))
    return found


def plain_contents(folder: Path) -> list[tuple[Any, ...]]:
    """Every row of the files in a folder, by name."""
    found = []
    for path in sorted(folder.iterdir()):
        for batch in feather.read_table(path).to_batches():
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def names_of(layout: EmbeddingLayout) -> list[Name]:
    """Sixty names: keys at the edges, of the same buckets, by chance; some keys in two tables."""
    chance = np.random.default_rng(3).integers(2**64, size=20, dtype=np.uint64).tolist()
    keys = [0, 2**64 - 1, 2**63, *colliding(layout, 17), *chance]
    return [(key, table.number) for key in keys for table in layout.groups[0].tables[: 1 + key % 2]]


THEN = st.sampled_from(["", "", "full", "changes", "changes", "reload"])
STEPS = st.lists(st.tuples(st.sets(st.integers(0, 59), max_size=12), THEN), min_size=5, max_size=30)


@pytest.mark.parametrize("examples", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_the_chain_is_what_a_twin_has_after_any_life(examples: int) -> None:
    """The twin is one plain store without files; reloads put the rows on another number of servers."""
    settings(max_examples=examples)(live)()


@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    steps=STEPS,
    capacity=st.sampled_from([24, 40, 400]),
    partitions=st.sampled_from([1, 4]),
    dtype=st.sampled_from(DTYPES),
    servers=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def live(optimizer: Any, steps: Any, capacity: int, partitions: int, dtype: str, servers: int, seed: int) -> None:
    layout = layout_of(DIM, capacity, partitions, optimizer, TABLES[:2], dtype=dtype, remembers_evictions=True)
    names, rng = names_of(layout), np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        life = Servers(layout, servers, Path(folder) / "checkpoints")
        twin: naive_store.Store | None = naive_store.Store(layout)
        for step, (places, then) in enumerate(steps):
            chosen = list(dict.fromkeys(names[place % len(names)] for place in sorted(places)))
            gradients = {name: rng.standard_normal(DIM).astype(np.float32) for name in chosen}
            life.look_up(chosen, step)
            life.update(chosen, step, gradients)
            if twin is not None:
                twin.look_up(chosen, step, True, step)
                twin.update(chosen, np.array([gradients[name] for name in chosen]).reshape(-1, DIM), step, step)
            if not then:
                continue
            checkpoint = life.save(step + 1, then != "full")
            whole = life.full(Path(folder) / f"full-{step}")
            if twin is not None:
                assert_like(checkpoint, twin)
            other = Servers(layout, 1 + (servers + step) % 3, life.checkpoints).load(checkpoint)
            again = Servers(layout, len(life.shards), life.checkpoints).load(checkpoint)
            assert contents_of(read_chain(checkpoint)) == plain_contents(Path(folder) / f"full-{step}")
            # Sometimes a row finds no space among others in another order.
            if not any(shard.counters()[table.name].left_out for shard in again.shards for table in layout.tables()):
                assert again.full(Path(folder) / f"again-{step}") == whole
            if then == "reload":
                # Rows are at other places after a reload, so other ones are evicted than in the twin.
                life, twin = other, None


def assert_like(checkpoint: Path, twin: naive_store.Store) -> None:
    """The rows of the chain are those of the twin, to the bit."""
    tables = {table.name: table for table in twin.group.tables}
    found = {}
    for name, id_, last_used, *vectors in contents_of(read_chain(checkpoint)):
        key = naive_store.mix(id_ ^ tables[name].salt)
        found[key, tables[name].number] = (last_used, *(np.array(each, np.float32).tobytes() for each in vectors))
    expected = {}
    for row in twin.rows():
        vectors = (row.embedding, *row.states.values())
        expected[row.name] = (row.last_used, *(each.astype(np.float32).tobytes() for each in vectors))
    assert found == expected


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Three checkpoints of two servers, the first one with all rows; rows were evicted in between."""
    layout = layout_of(DIM, 64, 4, OPTIMIZERS[2], TABLES[:2], remembers_evictions=True)
    life, names = Servers(layout, 2, tmp_path / "checkpoints"), names_of(layout)
    chance = np.random.default_rng(5).integers(2**64, size=80, dtype=np.uint64).tolist()
    names += [(key, 0) for key in chance]
    for step in range(30):
        chosen = names[step * 4 : step * 4 + 8] if step < 20 else names[step * 4 : step * 4 + 2]
        life.look_up(chosen, step)
        life.update(chosen, step, {name: np.ones(DIM) for name in chosen})
        if step in (19, 24, 29):
            life.save(step + 1, True)
    return tmp_path / "checkpoints"


def test_a_chain_has_changes_and_removed_ids(saved: Path) -> None:
    chain = read_chain(checkpoint_folder(saved, 30))
    assert [manifest.step for manifest in chain.manifests] == [20, 25, 30]
    assert all(manifest.deleted_files() for manifest in chain.manifests[1:])
    assert {path.parent.name for file in chain.row_files(True) for path, _ in file.parts} == {EMBEDDINGS, DELETED}


def test_no_order_of_batches_and_their_sizes_matters(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents_of(read_chain(checkpoint_folder(saved, 30)))
    plain = merged_rows.record_batches

    @contextmanager
    def cut_up(path: Path) -> Iterator[Iterator[Any]]:
        with plain(path) as batches:
            yield (batch.slice(at, 3) for batch in batches for at in range(0, batch.num_rows, 3))

    monkeypatch.setattr(merged_rows, "record_batches", cut_up)
    assert contents_of(read_chain(checkpoint_folder(saved, 30))) == whole


def rewrite(folder: Path, change: Any) -> None:
    """Change the fields of a manifest; its own checksum is right."""
    fields = to_builtins(read_manifest(folder))
    change(fields)
    write_checked(folder / MANIFEST, fields)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def flip_all(folder: Path) -> None:
    """Change a bit of each file; a server that wrote all rows later does not need its own."""
    for path in folder.iterdir():
        flip(path)


def one_more(fields: dict[str, Any]) -> None:
    """State a row more than the servers had, everywhere."""
    [name, *_] = fields["files"][0]["rows"]["held"]
    fields["files"][0]["rows"]["held"][name] += 1
    for table in fields["tables"]:
        table["rows"] += table["name"] == name
    fields["groups"]["0"] += 1


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda at: shutil.rmtree(at(25)), "step-30 has only what changed since step 25, .* without .*step-25"),
        (lambda at: shutil.rmtree(at(20)), "step-25 has only what changed since step 20, .* without .*step-20"),
        (lambda at: rewrite(at(25), lambda fields: fields.update(samples=1)), "step-25 is another one"),
        (lambda at: flip(at(20) / MANIFEST), "step-20"),
        (lambda at: next((at(20) / EMBEDDINGS).iterdir()).unlink(), "step-20.* is missing"),
        (lambda at: next((at(25) / DELETED).iterdir()).unlink(), "step-25.* is missing"),
        (lambda at: flip_all(at(20) / EMBEDDINGS), "step-20.* has changed since it was saved"),
        (lambda at: flip_all(at(25) / DELETED), "step-25.* has changed since it was saved"),
        (lambda at: rewrite(at(30), lambda fields: fields.update(parent=None)), "rows of its tables"),
        (lambda at: rewrite(at(30), lambda fields: fields["parent"].update(step=30)), "step-30 is another one"),
        (lambda at: rewrite(at(30), lambda fields: fields["files"][0]["rows"].update(held={})), "its files have"),
        (lambda at: rewrite(at(30), one_more), r"with the \d files that it depends on, has .* rows of its tables"),
    ],
)  # fmt: skip
def test_every_damage_to_a_chain_is_refused_and_named(saved: Path, harm: Any, complaint: str) -> None:
    harm(lambda step: checkpoint_folder(saved, step))
    with pytest.raises(CheckpointError, match=complaint):
        contents_of(read_chain(checkpoint_folder(saved, 30)))


def test_checkpoints_that_others_depend_on_are_removed_after_them(saved: Path) -> None:
    assert removable(saved, [20, 25]) == []
    assert removable(saved, [25, 30]) == [30, 25]
    assert removable(saved, []) == []
    assert removable(saved, [20, 25, 30]) == [], "the last ones stay"


def test_the_only_checkpoint_that_can_be_loaded_stays(saved: Path) -> None:
    """The newest depends on one that is damaged, so it is of no use alone."""
    manifest = checkpoint_folder(saved, 25) / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert newest_whole(saved, [20, 25, 30]) == 20
    assert removable(saved, [20, 25]) == removable(saved, [20]) == []


def test_a_server_that_did_not_save_the_parent_writes_all_rows(saved: Path) -> None:
    layout = layout_of(DIM, 64, 4, OPTIMIZERS[2], TABLES[:2], remembers_evictions=True)
    loaded = Servers(layout, 2, saved).load(checkpoint_folder(saved, 30))
    again = loaded.save(31, True)
    assert read_manifest(again).parent == Parent(30, manifest_digest(checkpoint_folder(saved, 30)))
    assert [take_changes(shard, 33, 30) for shard in loaded.shards] == [[None], [None]]
    other = Servers(layout, 3, saved).load(checkpoint_folder(saved, 30))
    assert read_manifest(other.save(32, True)).parent is None
