"""A disk that takes no more costs saves and never the job: lines of the record and the last save wait for space."""

import time
from pathlib import Path

import pytest

from persia_cli.engines.embedded import EmbeddedEngine
from persia_cli.observe.journal import EVENTS, METRICS
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    finished_steps,
    newest_checkpoint,
    read_manifest,
)
from tests.conftest import poll_for
from tests.support.full_disk import leave_free, small_disk
from tests.support.jobs import plan
from tests.support.launched import Launched
from tests.support.small import WORDS

DISK, LIMIT_S = 2 * 2**20, 120.0
BIG_ROWS = ["model.dim=64", "dataset.generator.cardinalities=[9000, 9000]", "embedding.capacity=16384"]
"""Rows of more than a MiB."""


def test_lines_wait_while_the_disk_of_the_run_directory_is_full() -> None:
    with small_disk(16 * DISK) as disk:
        filled_s: list[float] = []

        def fill_for_a_second() -> None:
            metrics = disk / "run" / METRICS
            if not filled_s and metrics.exists() and metrics.read_text().count("\n") > 3:
                leave_free(disk, 0)
                filled_s.append(time.monotonic())
            elif filled_s and time.monotonic() - filled_s[0] > 1:
                (disk / "filler").unlink(missing_ok=True)

        result = EmbeddedEngine().launch(
            plan([*WORDS, "cluster=embedded", "train.steps=200"], disk / "run"), fill_for_a_second
        )
        assert filled_s
        assert [line["step"] for line in result.metrics if line["split"] == "train"] == list(range(1, 201))
        assert read_manifest(newest_checkpoint(disk / "run" / CHECKPOINTS)).step == 200


def has_aborted(run_dir: Path, checkpoints: Path) -> bool:
    """Return True if a save has failed and left nothing; the next one, which may have begun, is removed too."""
    events = run_dir / EVENTS
    return (
        events.exists()
        and "save_failed" in events.read_text()
        and {path.name for path in checkpoints.iterdir()} <= {"writer.json"}
    )


def test_the_last_save_waits_for_space() -> None:
    with small_disk(16 * DISK) as disk:
        filler = leave_free(disk, 400_000)

        def make_room() -> None:
            if filler.exists() and has_aborted(disk / "run", disk / "run" / CHECKPOINTS):
                filler.unlink()

        words = [*WORDS, "cluster=embedded", *BIG_ROWS, "train.steps=100"]
        result = EmbeddedEngine().launch(plan(words, disk / "run"), make_room)
        ends = [event["event"] for event in result.events if event["event"].startswith("save")]
        assert (ends[0], ends[-1]) == ("save_failed", "saved")
        assert finished_steps(disk / "run" / CHECKPOINTS) == [100]


@pytest.mark.slow
def test_a_signal_ends_the_wait_of_the_last_save() -> None:
    with small_disk(DISK) as disk:
        leave_free(disk, 400_000)
        words = [*WORDS, "cluster=local", *BIG_ROWS, "train.steps=100", "checkpoint.grace_s=3"]
        with Launched(words, disk / "run") as job:
            poll_for(lambda: "not saved" in job.output or job.process.poll() is not None, LIMIT_S, "a failed save")
            job.process.terminate()
            code, _ = job.end(LIMIT_S)
            assert code == 75, job.output
            assert f"disk full: cannot write {disk / 'run' / CHECKPOINTS}" in job.output
        assert list((disk / "run" / CHECKPOINTS).iterdir()) == []


def test_training_goes_on_without_a_save_and_the_next_one_works(tmp_path: Path) -> None:
    """The disk of the checkpoints is full until a save was aborted; then there is space."""
    with small_disk(16 * DISK) as disk:
        filler = leave_free(disk, 300_000)
        path = f"checkpoint.path={disk}/models"
        words = [*WORDS, *BIG_ROWS, "cluster=embedded", "checkpoint.every_steps=100", "train.steps=300", path]

        def make_room() -> None:
            if filler.exists() and has_aborted(tmp_path / "run", disk / "models"):
                filler.unlink()

        result = EmbeddedEngine().launch(plan(words, tmp_path / "run"), make_room)
        failed = [event for event in result.events if event["event"] == "save_failed"]
        saved = [event["step"] for event in result.events if event["event"] == "saved"]
        assert [event["given_up"] for event in failed] == list(range(1, len(failed) + 1))
        assert failed[0]["step"] == 100
        assert f"disk full: cannot write {disk}/models/step-100" in failed[0]["text"]
        assert saved[-1] == 300
        assert failed[0]["retry_s"] <= 5, "the next one comes before its interval is over"
        assert [line["step"] for line in result.metrics if line["split"] == "train"] == list(range(1, 301))
        assert finished_steps(disk / "models") == saved
        assert sorted(each.name for each in (disk / "models").iterdir()) == [
            *(f"step-{step}" for step in saved), "writer.json",
        ]  # fmt: skip
        assert read_manifest(newest_checkpoint(disk / "models")).step == 300
