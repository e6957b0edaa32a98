"""Training goes on while a checkpoint is written, and the checkpoint is the one of a run that waits for it."""

import time
from pathlib import Path
from typing import Any

import pytest

from persia_cli.engines.job import JobResult
from persia_cli.roles.embedding_server import saving as shard_saving
from persia_cli.storage.hashed_files import HashingFile
from persia_cli.store import layout, snapshot
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    checkpoint_folder,
    finished_steps,
    read_manifest,
)
from tests.conftest import poll_for
from tests.support.jobs import losses, train

WORDS = [
    *("conf=synthetic", "cluster=embedded", "train.batch_size=32", "train.log_every_steps=1", "train.steps=24"),
    *("dataset.generator.train_rows=1000", "dataset.generator.eval_rows=96", "model.hidden=[8]", "model.dim=4"),
    *("checkpoint.every_steps=4", "checkpoint.keep=null", "embedding.capacity=3000", "eval.every_steps=8"),
]
STEPS = [4, 8, 12, 16, 20, 24]
SILENCE_S = 3.0


def contents(run_dir: Path) -> dict[int, set[tuple[str, str, str]]]:
    """Every file of every checkpoint with its checksum."""
    folder = run_dir / CHECKPOINTS
    return {
        step: {
            (file.folder, file.name, file.xxh128)
            for file in read_manifest(checkpoint_folder(folder, step)).files
            if not file.folder.startswith("run")
        }
        for step in finished_steps(folder)
    }


def overlaps(result: JobResult) -> int:
    """Return the number of checkpoints that were complete only after a later phase had begun."""
    told = [event["phase"] if event["event"] == "phase" else event["event"] for event in result.events]
    told = [each for each in told if each in ("training", "evaluating", "saving", "saved", "done")]
    return sum(told[told.index("saving", at) + 1] != "saved" for at, each in enumerate(told) if each == "saving")


def updates(result: JobResult) -> dict[str, int]:
    [roles] = [event["roles"] for event in result.events if event["event"] == "roles"]
    [server] = [role for role in roles if role["role"] == "embedding-server"]
    counted: dict[str, int] = server["updates"]
    return counted


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are written a few rows at a time, with little space for old rows."""
    monkeypatch.setattr(layout, "ROWS_PER_PARTITION", 64)
    monkeypatch.setattr(snapshot, "PORTION_BYTES", 4000)
    monkeypatch.setattr(snapshot, "COPIED_BYTES", 0)
    monkeypatch.setattr(shard_saving, "PORTIONS_AHEAD", 1)


def write_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    write = HashingFile.write

    def slowly(file: HashingFile, data: Any) -> int:
        time.sleep(0.002)
        return write(file, data)

    monkeypatch.setattr(HashingFile, "write", slowly)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize(
    "words",
    [["mode=sync"], pytest.param(["mode=async", "mode.staleness=1"], marks=pytest.mark.slow)],
    ids=["sync", "async"],
)
def test_losses_and_files_are_those_of_a_fast_disk(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = train([*WORDS, *words], tmp_path / "fast")
    write_slowly(monkeypatch)
    slow = train([*WORDS, *words], tmp_path / "slow")
    assert overlaps(slow) >= 4
    assert losses(slow) == losses(fast)
    assert contents(slow.run_dir) == contents(fast.run_dir)
    assert list(contents(slow.run_dir)) == STEPS
    assert updates(slow)["save_waits_ms"] > 0, "there was too little space, so look-ups waited, and that is counted"


def test_a_disk_that_hangs_does_not_stop_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands still for longer than a silent replica would live, and is then as fast as ever."""
    write, began = HashingFile.write, []

    def stands_still(file: HashingFile, data: Any) -> int:
        if not began:
            began.append(time.monotonic())
            poll_for(lambda: time.monotonic() > began[0] + SILENCE_S + 1.0, 60.0, "the disk")
        return write(file, data)

    monkeypatch.setattr(HashingFile, "write", stands_still)
    result = train([*WORDS, "mode=sync", f"cluster.silence_timeout_s={SILENCE_S}"], tmp_path / "run")
    assert finished_steps(result.run_dir / CHECKPOINTS) == STEPS
    assert overlaps(result) >= 1, "a phase began while the disk stood still"
