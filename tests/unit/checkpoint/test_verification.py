"""Every flaw of a checkpoint is found and named, and a sound one has none."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persia_cli.checkpoint.verification import Verification, VerifyingProgress, verify_checkpoint
from persia_cli.store.checkpoints.manifest import CHECKPOINTS
from tests.support.forge import (
    change_tensors,
    read_arrow,
    recount,
    renew,
    vectors_of,
    with_vectors,
    write_arrow,
)
from tests.support.jobs import train

STEPS = 12
WORDS = [
    "conf=synthetic",
    "cluster=embedded",
    "mode=sync",
    "optimizer=adagrad",
    "model.hidden=[4]",
    "model.dim=4",
    "dataset.generator.train_rows=2000",
    "dataset.generator.eval_rows=64",
    "dataset.generator.dense=2",
    "dataset.generator.cardinalities=[40, 300]",
    "train.batch_size=32",
    "train.log_every_steps=4",
    f"train.steps={STEPS}",
    "embedding.capacity=4096",
    "embedding.num_partitions=64",
    "cluster.embedding_servers=2",
    "checkpoint.best_by=auc",
    "eval.every_steps=4",
]
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a training with two servers."""
    run_dir = tmp_path_factory.mktemp("verified") / "run"
    train(WORDS, run_dir)
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def checkpoint_of(run_dir: Path) -> Path:
    return run_dir / CHECKPOINTS / f"step-{STEPS}"


def verified(run_dir: Path) -> Verification:
    return verify_checkpoint(checkpoint_of(run_dir), VerifyingProgress())


def rows_files(run_dir: Path) -> list[Path]:
    return sorted((checkpoint_of(run_dir) / "embeddings").iterdir())


def rows(change: Callable[[pa.Table], pa.Table], **of_table: int) -> Change:
    """Change the first file of rows; `of_table` are numbers of rows to note in the manifest."""

    def apply(run_dir: Path) -> None:
        path = rows_files(run_dir)[0]
        write_arrow(path, change(read_arrow(path)))

        def note(manifest: dict[str, Any]) -> None:
            [file] = [
                each for each in manifest["files"] if (each["folder"], each["name"]) == (path.parent.name, path.name)
            ]
            table = read_arrow(path).column("table")
            if not pa.types.is_dictionary(table.type):
                return
            counted = {each["values"]: each["counts"] for each in table.value_counts().to_pylist()}
            if not of_table.get("stale"):
                file["rows"]["tables"] = counted
            recount(manifest)

        renew(checkpoint_of(run_dir), note)

    return apply


def cell(name: str, row: int, value: float) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = vectors_of(table, name)
        values[row, 1] = value
        return with_vectors(table, name, values)

    return rows(change)


def scalar(name: str, row: int, value: int | None) -> Change:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[row] = value
        column = pa.array(values, table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return rows(change)


def other_table(run_dir: Path) -> None:
    """Give a row to a table that the manifest does not know, though the numbers of rows fit."""
    path = rows_files(run_dir)[0]
    table = read_arrow(path)
    names = table.column("table").to_pylist()
    names[3] = "stranger"
    write_arrow(path, table.set_column(0, "table", pa.array(names).dictionary_encode()))
    renew(checkpoint_of(run_dir))


def tensors(name: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    def apply(run_dir: Path) -> None:
        change_tensors(checkpoint_of(run_dir) / "dense" / name, lambda found: (change(found), None)[1])
        renew(checkpoint_of(run_dir))

    return apply


def file(name: str, change: Callable[[Path], Any], renewed: bool = False) -> Change:
    def apply(run_dir: Path) -> None:
        change(checkpoint_of(run_dir) / name)
        if renewed:
            renew(checkpoint_of(run_dir))

    return apply


WEIGHTS, STATE = "dense.safetensors", "dense_optimizer.safetensors"
ONE = "network.0.weight"
GROUP = "group-0-partitions-0000"

DAMAGE: dict[str, tuple[Change, str, int]] = {
    "NaN in an embedding": (cell("embedding", 5, np.nan), "NaN or infinite values in the embedding", 1),
    "infinity in a state": (cell("adagrad_sum", 5, np.inf), "NaN or infinite values in the state adagrad_sum", 1),
    "a row is missing": (rows(lambda table: table.slice(1), stale=1), "rows of table", 1),
    "no id": (scalar("id", 5, None), "values of its column id are missing", 1),
    "ids of another type": (
        rows(lambda t: t.set_column(1, "id", t.column("id").cast(pa.float64(), safe=False))),
        "its column id is not of type uint64",
        1,
    ),
    "a table that is not known": (other_table, "rows of table 'stranger'", 1),
    "not a file of rows": (
        file(f"embeddings/{GROUP}-0000.arrow", lambda path: path.with_name(path.name).write_bytes(b"nonsense"), True),
        "damaged or not a file",
        1,
    ),
    "NaN in a weight": (tensors(WEIGHTS, lambda t: t[ONE].__setitem__((0, 0), np.nan)), "1 values that are NaN", 1),
    "a file that is not there": (file(f"dense/{WEIGHTS}", Path.unlink), "is missing", 2),
    "a file too many": (file("dense/more", Path.touch), "is not listed", 1),
}


def test_a_sound_checkpoint_has_no_flaw(run_dir: Path) -> None:
    found = verified(run_dir)
    assert (found.flaws, found.notes) == ([], [])
    there = [read_arrow(path) for path in rows_files(run_dir)]
    assert len(there) == 2
    assert found.rows == sum(map(len, there))
    renew(checkpoint_of(run_dir))
    write_arrow(rows_files(run_dir)[0], there[0])
    renew(checkpoint_of(run_dir))
    assert verified(run_dir).flaws == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_flaw_is_found_and_named(run_dir: Path, damage: str) -> None:
    change, words, number = DAMAGE[damage]
    change(run_dir)
    flaws = verified(run_dir).flaws
    assert len(flaws) == number, flaws
    assert words in flaws[0]
    assert all("/" in flaw and len(flaw.splitlines()) == 1 for flaw in flaws)
    if "a row" in damage:
        assert str(rows_files(run_dir)[0]) in flaws[0]
        assert "table" in flaws[0]


def test_all_flaws_are_found_not_only_the_first(run_dir: Path) -> None:
    together = ("NaN in an embedding", "infinity in a state", "NaN in a weight", "a file too many")
    for damage in together:
        DAMAGE[damage][0](run_dir)
    flaws = "\n".join(verified(run_dir).flaws)
    assert [name for name in together if DAMAGE[name][1] not in flaws] == []


def test_a_changed_bit_anywhere_is_noticed(run_dir: Path) -> None:
    """In files of rows, bits of offsets are changed too; the result must be a sentence."""
    draw = random.Random(3)
    for path in sorted(path for path in checkpoint_of(run_dir).rglob("*") if path.is_file()):
        content = path.read_bytes()
        places = {draw.randrange(len(content)) for _ in range(4)}
        places |= {draw.randrange(min(len(content), 600)) for _ in range(4)}
        places |= {len(content) - 1 - draw.randrange(min(len(content), 600)) for _ in range(4)}
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            flaws = verified(run_dir).flaws
            assert any(str(path) in flaw for flaw in flaws), (path.name, place)
        path.write_bytes(content)
    assert verified(run_dir).flaws == []


def test_a_checkpoint_removed_meanwhile_is_not_damaged(run_dir: Path) -> None:
    """As a running job removes old checkpoints."""
    gone: list[int] = []

    def remove(progress: VerifyingProgress) -> None:
        if not gone:
            gone.append(progress.work)
            checkpoint_of(run_dir).rename(run_dir / "gone")
            shutil.rmtree(run_dir / "gone")

    found = verify_checkpoint(checkpoint_of(run_dir), VerifyingProgress(on_change=remove))
    assert gone
    assert (found.flaws, len(found.notes)) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["mode=async", "optimizer.dense.kind=adam", "cluster.data_loaders=2"],
        ["mode=hybrid", "optimizer=adam", "embedding.dtype=bfloat16", "train.precision=bfloat16"],
        ["mode=hybrid", "optimizer=rowwise_adagrad", "embedding.dtype=float16", "embedding.capacity=128"],
        ["mode=hybrid", "optimizer=ftrl", "model=dcn_v2"],
        ["mode=hybrid", "optimizer=rowwise_adam", "embedding.dtype=int8"],
        ["optimizer=sgd", "embedding.tables.feature_1={hash_stack: {rounds: 2, size: 50}}"],
    ],
    ids=lambda words: words[0] + words[1],
)
def test_trained_checkpoints_have_no_flaw(tmp_path: Path, words: list[str]) -> None:
    train([*WORDS, *words], tmp_path / "run")
    found = verified(tmp_path / "run")
    assert (found.flaws, found.notes) == ([], [])
    assert found.rows > 50
