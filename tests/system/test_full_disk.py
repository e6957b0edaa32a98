"""A disk that takes no more ends a job, or costs a save, with one sentence; what is there stays readable."""

from pathlib import Path

import pytest

from persia_cli.engines import embedded
from persia_cli.errors import UserError
from persia_cli.observe.history import read_history
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from persia_cli.store.checkpoints.chain import read_chain
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    checkpoint_folder,
    finished_steps,
    newest_checkpoint,
    read_manifest,
)
from tests.support.full_disk import leave_free, small_disk
from tests.support.jobs import plan, train
from tests.support.small import WORDS
from tests.system.test_deltas import rows_of

DISK = 2 * 2**20
BIG_ROWS = ["model.dim=64", "dataset.generator.cardinalities=[9000, 9000]", "embedding.capacity=16384"]
"""Rows of more than a MiB."""


def test_while_metrics_are_written() -> None:
    with small_disk(DISK) as disk:
        leave_free(disk, 120_000)
        with pytest.raises(UserError) as ended:
            train([*WORDS, "cluster=embedded"], disk / "run")
        assert_one_sentence(ended.value, disk)
        lines = read_journal(disk / "run" / METRICS)
        assert lines
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("cluster", ["embedded", pytest.param("local", marks=pytest.mark.slow)])
def test_while_a_checkpoint_is_written(cluster: str) -> None:
    with small_disk(DISK) as disk:
        leave_free(disk, 400_000)
        with pytest.raises(UserError) as ended:
            train([*WORDS, f"cluster={cluster}", *BIG_ROWS, "train.steps=100"], disk / "run")
        assert_one_sentence(ended.value, disk / "run" / CHECKPOINTS)
        outcome = read_history(disk / "run").outcome(0.0)
        assert (outcome.state, outcome.text) == ("failed", str(ended.value))
        assert list((disk / "run" / CHECKPOINTS).iterdir()) == []


def test_training_goes_on_without_a_save_and_the_next_one_works(tmp_path: Path) -> None:
    """The disk of the checkpoints is full until a save was aborted; then there is space."""
    with small_disk(16 * DISK) as disk:
        filler = leave_free(disk, 300_000)
        path = f"checkpoint.path={disk}/models"
        words = [*WORDS, *BIG_ROWS, "cluster=embedded", "checkpoint.every_steps=100", "train.steps=300", path]

        def make_room() -> None:
            events = tmp_path / "run" / EVENTS
            if filler.exists() and events.exists() and "save_failed" in events.read_text():
                assert [each.name for each in (disk / "models").iterdir()] == ["writer.json"]
                filler.unlink()

        result = embedded.launch(plan(words, tmp_path / "run"), make_room)
        failed = [event for event in result.events if event["event"] == "save_failed"]
        saved = [event["step"] for event in result.events if event["event"] == "saved"]
        assert [event["given_up"] for event in failed] == list(range(1, len(failed) + 1))
        assert failed[0]["step"] == 100
        assert f"disk full: cannot write {disk}/models/step-100" in failed[0]["text"]
        assert saved[-1] == 300
        assert sorted([*saved, *(event["step"] for event in failed)]) == [100, 200, 300]
        assert [line["step"] for line in result.metrics if line["split"] == "train"] == list(range(1, 301))
        assert finished_steps(disk / "models") == saved
        assert sorted(each.name for each in (disk / "models").iterdir()) == [
            *(f"step-{step}" for step in saved), "writer.json",
        ]  # fmt: skip
        assert read_manifest(newest_checkpoint(disk / "models")).step == 300


@pytest.mark.slow
def test_after_an_aborted_save_a_checkpoint_of_changes_is_whole(tmp_path: Path) -> None:
    """Servers count from a save that was not published: the next one has all rows, and later ones have changes."""
    words = [*WORDS, "cluster=embedded", "checkpoint.every_steps=20", "train.steps=160"]
    with small_disk(16 * DISK) as disk:
        deltas = [*words, "checkpoint.full_every=99"]

        def fill_for_one_save() -> None:
            events = (tmp_path / "run" / EVENTS).read_text() if (tmp_path / "run" / EVENTS).exists() else ""
            if "save_failed" in events:
                (disk / "filler").unlink(missing_ok=True)
            elif '"parent": 20' in events and not (disk / "filler").exists():
                leave_free(disk, 0)

        result = embedded.launch(plan([*deltas, f"checkpoint.path={disk}/models"], tmp_path / "run"), fill_for_one_save)
        parents = {event["step"]: event["parent"] for event in result.events if event["event"] == "saved"}
        failed = [event["step"] for event in result.events if event["event"] == "save_failed"]
        assert failed
        assert sorted([*parents, *failed]) == list(range(20, 161, 20))
        assert {step: parent for step, parent in parents.items() if step < failed[0]} == {
            step: step - 20 if step > 20 else None for step in range(20, failed[0], 20)
        }
        after = [step for step in parents if step > failed[-1]]
        assert [parents[step] for step in after] == [None, *after[:-1]]
        assert len(after) > 1
        full = train(words, tmp_path / "full").run_dir / CHECKPOINTS
        for step in parents:
            ours, theirs = (read_chain(checkpoint_folder(each, step)) for each in (disk / "models", full))
            assert rows_of(ours) == rows_of(theirs)


def assert_one_sentence(error: UserError, place: Path) -> None:
    text = str(error)
    assert f"disk full: cannot write {place}" in text
    assert "free space or choose another place" in text
    assert len(text.splitlines()) == 1
