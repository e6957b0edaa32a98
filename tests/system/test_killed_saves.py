"""SIGKILL while a checkpoint is written: the one before is whole, what is left is swept, and the run goes on."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.storage.locations import Location, location_of, subfolders
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    checkpoint_folder,
    finished_steps,
    newest_checkpoint,
    read_manifest,
    verify,
)
from persia_cli.store.checkpoints.saved_rows import saved_rows
from tests.support.s3 import object_store
from tests.support.small import WORDS
from tests.system.test_resume import persia


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """Nothing is looked for: pyarrow keeps connections to a store until the process ends."""


ENDLESS = 9000
"""Steps of a job that is killed before it comes to its end."""
SIZES = [f"dataset.generator.train_rows={ENDLESS * 32}", "dataset.generator.eval_rows=32"]


@contextmanager
def checkpoints_in(kind: str, folder: Path) -> Iterator[str]:
    """Give the address of a folder for checkpoints, on a disk or in an object store."""
    if kind == "disk":
        yield str(folder / "models")
    else:
        with object_store() as store:
            yield store.uri("killed")


def newest_step(checkpoints: Location) -> int:
    """Read every byte of the newest checkpoint; return its step, 0 if there is none."""
    if not finished_steps(checkpoints):
        return 0
    folder = newest_checkpoint(checkpoints)
    manifest = read_manifest(folder)
    for file in manifest.files:
        verify(folder / file.folder / file.name, file)
    return manifest.step


def kill_in_a_save(command: list[str], run_dir: Path, sign: str, after_s: float) -> None:
    """Start a job, and kill it some time after the sign of a save has come into its events."""
    before = read_started(run_dir)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if read_started(run_dir) not in (None, before) and sign in (run_dir / EVENTS).read_text():
            break
        time.sleep(0.002)
    time.sleep(after_s)
    still_there = process.poll() is None
    process.kill()
    _, said = process.communicate(timeout=30)
    assert still_there, said


def read_started(run_dir: Path) -> float | None:
    """When the coordinator of the last start began."""
    try:
        return float(read_journal(run_dir / EVENTS)[0]["time"])
    except (OSError, IndexError):
        return None


SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("kind", "kills"), [("disk", 1), pytest.param("disk", 50, marks=SLOW), pytest.param("store", 20, marks=SLOW)]
)
def test_a_job_killed_while_it_saves_resumes_the_checkpoint_before(tmp_path: Path, kind: str, kills: int) -> None:
    """Killed at random moments, again and again, the run has the losses and rows of one that nothing disturbed."""
    draw = random.Random(f"{kind} {kills}")
    with checkpoints_in(kind, tmp_path) as address:
        checkpoints, run_dir, reached, unfinished = location_of(address), tmp_path / "run", 0, 0
        words = [
            *WORDS, *SIZES, "cluster=embedded", f"checkpoint.path={address}", "checkpoint.every_steps=5",
            "checkpoint.keep=2", "resume=auto", "--run-dir", str(run_dir),
        ]  # fmt: skip
        command = [sys.executable, "-m", "persia_cli", "train", *words, f"train.steps={ENDLESS}"]
        for number in range(kills):
            # One of five is killed in the first save that it begins, the others somewhere in those after it.
            sign = '"saving"' if number % 5 == 1 else '"saved"'
            kill_in_a_save(command, run_dir, sign, draw.random() * 0.4)
            unfinished += any(not (folder / "manifest.json").is_file() for folder in subfolders(checkpoints))
            newest = newest_step(checkpoints)
            assert newest >= reached
            reached = newest
        assert reached
        assert kills < 20 or unfinished >= kills // 5, "hardly a kill came while files were written"

        last = reached + 5
        ended = persia("train", *words, f"train.steps={last}")
        assert ended.exit_code == 0, (ended.output, ended.exception)
        assert newest_step(checkpoints) == last
        steps = finished_steps(checkpoints)
        assert sorted(folder.name for folder in subfolders(checkpoints)) == sorted(f"step-{step}" for step in steps)
        if kind == "store":
            # One attempt is in each folder, and no file of another.
            assert [len(subfolders(folder)) for folder in subfolders(checkpoints)] == [1] * len(steps)
        straight = tmp_path / "straight"
        ended = persia("train", *WORDS, *SIZES, "cluster=embedded", f"train.steps={last}", "--run-dir", straight)
        assert ended.exit_code == 0, (ended.output, ended.exception)
        assert losses(run_dir) == losses(straight)
        theirs = rows_of(checkpoint_folder(straight / CHECKPOINTS, last))
        assert rows_of(checkpoint_folder(checkpoints, last)) == theirs


def rows_of(folder: Location) -> list[dict[str, Any]]:
    """All rows of a checkpoint."""
    files = saved_rows(folder, read_manifest(folder), with_dense=True)
    return [row for file in files for batch in file.batches() for row in batch.to_pylist()]


def losses(run_dir: Path) -> list[tuple[int, float]]:
    """Step and loss of every line of training."""
    return [(line["step"], line["loss"]) for line in read_journal(run_dir / METRICS) if line["split"] == "train"]
