"""A checkpoint has the rows in memory and those of the cold log as of one moment, and any servers can load them."""

from itertools import pairwise
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from persia_cli.checkpoint.content import SortedRows
from persia_cli.checkpoint.verification import VerifyingProgress, verify_checkpoint
from persia_cli.errors import CheckpointError
from persia_cli.store.checkpoints import saved_rows
from persia_cli.store.checkpoints.manifest import (
    COLD,
    EMBEDDINGS,
    begin_checkpoint,
    publish,
    read_manifest,
)
from persia_cli.store.checkpoints.row_files import load_shard, write_portions
from persia_cli.store.checkpoints.saved_rows import RowFile
from persia_cli.store.checkpoints.warm_rows import WarmRows
from persia_cli.store.cold.cold_rows import ColdStorage
from persia_cli.store.layout import (
    EmbeddingLayout,
    FeatureSpec,
    GroupSpec,
    RowOptimizer,
    TableSpec,
    table_salt,
)
from persia_cli.store.shard import Shard
from tests.support.saving import manifest_of, portions_of, save_shard

MEMORY, IDS, BATCH = 400, 3000, 150
COLD_BYTES = 2**20
TABLES = ("user", "item")
Contents = dict[tuple[str, int], tuple[Any, ...]]


def layout_of(capacity: int, cold_bytes: int, dtype: Any = "float32", kind: Any = "adagrad") -> EmbeddingLayout:
    """A group of two tables; `capacity` and `cold_bytes` are those of all servers."""
    tables = tuple(TableSpec(name, number, table_salt(name), 0.01) for number, name in enumerate(TABLES))
    group = GroupSpec(
        0, 6, RowOptimizer(kind, lr=0.1), tables, capacity, 8, dtype,
        counts_uses=True, epoch_bits=6, cold_bytes=cold_bytes,
    )  # fmt: skip
    return EmbeddingLayout((group,), tuple(FeatureSpec(n, 0, i, "sum") for i, n in enumerate(TABLES)), 7, "auto")


class Tier:
    """Servers that together have all rows, with a cold log each in `folder` if there is one."""

    def __init__(self, layout: EmbeddingLayout, servers: int, folder: Path | None = None) -> None:
        self.layout = layout
        self.shards = [
            Shard(layout, n, servers, cold_storage=None if folder is None else ColdStorage(folder / f"server-{n}", 2))
            for n in range(servers)
        ]
        for shard in self.shards:
            shard.begin_cold()

    def train(self, first: int, stop: int, skewed: bool = True) -> None:
        """Train steps; the same steps look up and change the same ids, for any servers."""
        for step in range(first, stop):
            draw = np.random.default_rng(step)
            ids = draw.zipf(1.2, BATCH) % IDS if skewed else draw.integers(0, IDS, BATCH)
            names = np.unique(np.stack([draw.integers(0, 2, BATCH), ids], 1), axis=0)
            tables = names[:, 0].astype(np.uint16)
            keys = self.shards[0].keys_of(names[:, 1].astype(np.uint64), tables)
            gradients = draw.standard_normal((keys.size, 6)).astype(np.float32)
            for shard in self.shards:
                own = shard.stores[0].owns(keys)
                shard.look_up_batch([(keys[own], tables[own])], step, 0, step)
                shard.update_batch([(keys[own], tables[own], gradients[own])], step, [0], step)

    def save(self, checkpoints: Path, step: int) -> Path:
        draft = begin_checkpoint(checkpoints, step)
        files = [file for shard in self.shards for file in save_shard(shard, draft / EMBEDDINGS)]
        final = publish(checkpoints, draft, manifest_of(self.layout, step, files))
        assert isinstance(final, Path)
        return final

    def load(self, checkpoint: Path) -> "Tier":
        for shard in self.shards:
            load_shard(shard, files_of(checkpoint))
        return self


def files_of(checkpoint: Path) -> list[RowFile]:
    return saved_rows.saved_rows(checkpoint, read_manifest(checkpoint), with_dense=True)


def contents_of(checkpoint: Path) -> Contents:
    """Every column of every row, which must be there once."""
    found: Contents = {}
    for file in files_of(checkpoint):
        file.verify()
        for batch in file.batches():
            columns = [column.to_pylist() for column in batch.columns]
            for table, id_, *values in zip(*columns, strict=True):
                assert (table, id_) not in found
                found[table, id_] = tuple(values)
    return found


def trained(rows: Contents) -> Contents:
    """Rows without their frequencies, which are estimates if memory is full."""
    return {name: (last_used, *vectors) for name, (last_used, _, *vectors) in rows.items()}


@pytest.mark.parametrize(
    ("servers", "dtype", "kind"),
    [(1, "float32", "adagrad"), (3, "bfloat16", "adam"), (2, "int8", "rowwise_adagrad")],
)
def test_any_servers_load_every_row_with_a_log_or_without(tmp_path: Path, servers: int, dtype: Any, kind: Any) -> None:
    small, large = (layout_of(*size, dtype, kind) for size in ((MEMORY, COLD_BYTES), (8000, 0)))
    tier, undisturbed = Tier(small, servers, tmp_path / "log"), Tier(large, 1)
    tier.train(0, 60)
    undisturbed.train(0, 60)
    checkpoint = tier.save(tmp_path / "a", 60)
    rows = contents_of(checkpoint)
    assert sum(file.rows.total for file in files_of(checkpoint) if COLD in str(file.path)) > MEMORY
    assert trained(rows) == trained(contents_of(undisturbed.save(tmp_path / "b", 60)))

    undisturbed.train(60, 80)
    after = trained(contents_of(undisturbed.save(tmp_path / "c", 80)))
    for number, loaded in enumerate((Tier(small, 1, tmp_path / "d"), Tier(small, 3, tmp_path / "e"), Tier(large, 2))):
        loaded.load(checkpoint)
        assert sum(shard.stores[0].row_count for shard in loaded.shards) == len(rows)
        assert contents_of(loaded.save(tmp_path / f"f{number}", 60)) == rows
        loaded.train(60, 80)
        assert trained(contents_of(loaded.save(tmp_path / f"g{number}", 80))) == after


def test_a_checkpoint_is_that_of_its_cut_while_training_and_compaction_go_on(tmp_path: Path) -> None:
    twin = Tier(layout_of(8000, 0), 1)
    twin.train(0, 60)
    rows = trained(contents_of(twin.save(tmp_path / "twin", 60)))
    lists = []
    with TemporaryDirectory(dir="/dev/shm") as other_disk:
        for name, log in (("a", tmp_path / "log"), ("b", Path(other_disk))):
            tier = Tier(layout_of(MEMORY, 2**18), 1, log)
            tier.train(0, 60)
            cut = tier.shards[0].begin_snapshot()
            tier.train(60, 76)
            draft = begin_checkpoint(tmp_path / name, 60)
            files = write_portions(
                tier.shards[0], portions_of(cut), draft / EMBEDDINGS, lambda rows: None, cold=cut.cold
            )
            checkpoint = publish(tmp_path / name, draft, manifest_of(tier.layout, 60, files))
            assert trained(contents_of(Path(str(checkpoint)))) == rows
            lists.append(files)
            saved = files_in(Path(str(checkpoint)) / COLD, "*.segment")
            shared = saved & files_in(log, "segment-*")
            # Compaction has removed some segments before they were saved: those were copied.
            assert (0 < len(shared) < len(saved)) if name == "a" else not shared
            for shard in tier.shards:
                shard.close()
    assert lists[0] == lists[1]


def test_checkpoints_share_segments_and_outlive_each_other_and_the_log(tmp_path: Path) -> None:
    tier = Tier(layout_of(MEMORY, COLD_BYTES), 1, tmp_path / "log")
    tier.train(0, 60)
    one, _, other, last = (tier.save(tmp_path / "a", step) for step in (60, 61, 62, 63))
    rows = contents_of(one)
    assert files_in(one, "*.segment") & files_in(other, "*.segment")
    tier.train(64, 70)
    [shard] = tier.shards
    shard.close()
    rmtree(one)
    assert contents_of(other) == contents_of(last) == rows


def test_one_damaged_file_leaves_a_checkpoint_whatever_file_it_is(tmp_path: Path) -> None:
    tier = Tier(layout_of(MEMORY, COLD_BYTES), 1, tmp_path / "log")
    tier.train(0, 60)
    checkpoints = [tier.save(tmp_path / "a", step) for step in (60, 61, 62, 63)]
    for two in pairwise(checkpoints):
        assert not files_in(two[0], "*.segment") & files_in(two[1], "*.segment")
    for two in zip(checkpoints, checkpoints[2:], strict=False):
        assert files_in(two[0], "*.segment") == files_in(two[1], "*.segment"), "each segment is written twice at most"
    for shard in tier.shards:
        shard.close()


def test_many_checkpoints_of_few_rows_do_not_use_up_the_segments(tmp_path: Path) -> None:
    tier, twin = Tier(layout_of(MEMORY, COLD_BYTES), 1, tmp_path / "log"), Tier(layout_of(8000, 0), 1)
    for step in range(80):
        tier.train(step, step + 1)
        twin.train(step, step + 1)
        last = tier.save(tmp_path / "a", step + 1)
    assert trained(contents_of(last)) == trained(contents_of(twin.save(tmp_path / "b", 80)))


def test_rows_come_in_the_order_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rows, "RUN_BYTES", 2**14)
    tier = Tier(layout_of(MEMORY, COLD_BYTES), 2, tmp_path / "log")
    tier.train(0, 60)
    checkpoint = tier.save(tmp_path / "a", 60)
    blocks = list(SortedRows(checkpoint, read_manifest(checkpoint), 0))
    keys = np.concatenate([block.keys for block in blocks])
    assert (keys[1:] >= keys[:-1]).all()
    found = {
        (block.names[table], id_): vector
        for block in blocks
        for table, id_, vector in zip(
            block.tables.tolist(), block.ids.tolist(), block.vectors["embedding"].tolist(), strict=True
        )
    }
    assert found == {name: values[2] for name, values in contents_of(checkpoint).items()}


def test_a_warm_start_takes_cold_rows(tmp_path: Path) -> None:
    tier = Tier(layout_of(MEMORY, COLD_BYTES), 2, tmp_path / "log")
    tier.train(0, 60)
    checkpoint = tier.save(tmp_path / "a", 60)
    warm = Tier(layout_of(MEMORY, COLD_BYTES), 3, tmp_path / "warm")
    for shard in warm.shards:
        WarmRows(shard, {name: [name] for name in TABLES}, True).load(files_of(checkpoint))
    found, rows = contents_of(warm.save(tmp_path / "b", 1)), contents_of(checkpoint)
    assert {name: values[2:] for name, values in found.items()} == {name: values[2:] for name, values in rows.items()}
    assert {values[0] for values in found.values()} == {0}


@pytest.mark.parametrize("memory", [(MEMORY, 0), (MEMORY, 2**16)])
def test_more_rows_than_fit_are_refused(tmp_path: Path, memory: tuple[int, int]) -> None:
    tier = Tier(layout_of(8000, 0), 1)
    tier.train(0, 80, skewed=False)
    checkpoint = tier.save(tmp_path / "a", 80)
    with pytest.raises(CheckpointError):
        Tier(layout_of(*memory), 1, tmp_path / "other").load(checkpoint)


def test_damage_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    tier = Tier(layout_of(MEMORY, COLD_BYTES), 1, tmp_path / "log")
    tier.train(0, 60)
    sound = tier.save(tmp_path / "a", 60)
    before = verify_checkpoint(sound, VerifyingProgress()).flaws  # it has no dense weights
    [own] = [file for file in files_of(sound) if COLD in str(file.path)]
    for place, _ in own.parts:
        for harm in (flipped, shortened):
            copy = tmp_path / "b" / sound.name
            copytree(sound, copy, dirs_exist_ok=True)
            harm(copy / COLD / place.name)
            flaws = verify_checkpoint(copy, VerifyingProgress()).flaws[: -len(before)]
            assert flaws
            assert all(place.name in flaw and "\n" not in flaw for flaw in flaws)
            with pytest.raises(CheckpointError, match=place.name):
                Tier(layout_of(8000, 0), 1).load(copy)
    # Each block has its own checksum, so readers that do not verify the file first find damage too.
    flipped(Path(str(own.parts[1][0])))
    with pytest.raises(CheckpointError, match=own.parts[1][0].name):
        list(own.batches())


def files_in(folder: Path, pattern: str) -> set[tuple[int, int]]:
    """The identities of files, which hard links share."""
    return {(path.stat().st_dev, path.stat().st_ino) for path in folder.rglob(pattern)}


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.unlink()
    path.write_bytes(content)


def shortened(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-4096])
