"""Retained checkpoints: the best, the newest, those that were due; and the meant one."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persia_cli.control.evaluation_tracker import Best
from persia_cli.errors import CheckpointError, DiskError
from persia_cli.store.checkpoints import retention
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    MANIFEST,
    begin_checkpoint,
    checkpoint_folder,
    finished_steps,
)
from persia_cli.store.checkpoints.manifest import publish as publish_checkpoint
from persia_cli.store.checkpoints.retention import (
    BEST,
    Retention,
    best_checkpoint,
    choose_checkpoint,
    removable,
    superfluous,
)
from persia_cli.store.shard import Shard
from tests.support.saving import manifest_of, save_shard
from tests.support.shards import layout_of


def publish(run_dir: Path, step: int) -> None:
    folder = checkpoint_folder(run_dir / CHECKPOINTS, step)
    (folder / "dense").mkdir(parents=True)
    (folder / "dense" / "dense.safetensors").write_bytes(b"weights")
    (folder / MANIFEST).write_text("{}")


def keep(
    run_dir: Path, steps: list[int], best: set[int], keep: int | None = None, every: int | None = None
) -> list[int]:
    """Publish checkpoints of these steps, those of `best` being the best so far, and return those that are left."""
    retention = Retention(run_dir / CHECKPOINTS, keep)
    for step in steps:
        publish(run_dir, step)
        trigger = "steps" if every and step % every == 0 else "best" if step in best else "end"
        retention.add(step, Best("auc", "high", step=step, value=0.5) if step in best else None, trigger)
    return finished_steps(run_dir / CHECKPOINTS)


@pytest.mark.parametrize(
    ("steps", "best", "most", "every", "left"),
    [
        ([2, 4, 6], set(), None, 2, [2, 4, 6]),
        ([2, 4, 6], set(), 2, 2, [4, 6]),
        ([2, 4, 6, 8], {2}, 2, 2, [2, 6, 8]),
        ([2, 4, 6, 8], {2, 8}, 2, 2, [6, 8]),
        ([2, 3, 4, 5], {3, 5}, None, 2, [2, 4, 5]),
        ([3, 5, 9], {3, 5}, None, None, [5, 9]),
        ([3, 5, 9], {3, 5, 9}, 1, None, [9]),
        ([100, 150], {150}, 1, 100, [100, 150]),
    ],
)
def test_retained_checkpoints(
    tmp_path: Path, steps: list[int], best: set[int], most: int | None, every: int | None, left: list[int]
) -> None:
    assert keep(tmp_path, steps, best, most, every) == left
    expected = max(best, default=None)
    assert best_checkpoint(tmp_path / CHECKPOINTS) == (
        checkpoint_folder(tmp_path / CHECKPOINTS, expected) if best else None
    )
    assert {path.name for path in (tmp_path / CHECKPOINTS).iterdir()} == {f"step-{step}" for step in left} | (
        {BEST} if best else set()
    )


def test_nothing_is_removed_until_the_best_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, fails = retention.write_checked, [False, True, True, False]

    def write_or_fail(*arguments: Any) -> None:
        if fails.pop(0):
            raise DiskError("the disk is full")
        write(*arguments)

    monkeypatch.setattr(retention, "write_checked", write_or_fail)
    checkpoints = tmp_path / CHECKPOINTS
    kept = Retention(checkpoints, 1)
    for step, is_best in ((100, True), (200, True), (300, False), (400, False)):
        publish(tmp_path, step)
        failing = pytest.raises(DiskError, match="full") if step in (200, 300) else nullcontext()
        with failing:
            kept.add(step, Best("auc", "high", step=step, value=0.5) if is_best else None, "steps")
        if step in (200, 300):
            assert best_checkpoint(checkpoints) == checkpoint_folder(checkpoints, 100)
            assert 100 in finished_steps(checkpoints)
    assert best_checkpoint(checkpoints) == checkpoint_folder(checkpoints, 200)
    assert finished_steps(checkpoints) == [200, 400]


@given(st.sets(st.integers(1, 50), min_size=1), st.data())
def test_the_newest_and_the_best_always_stay_and_no_more_than_asked_for(steps: set[int], data: st.DataObject) -> None:
    saved = sorted(steps)
    best = data.draw(st.sampled_from(saved) | st.none())
    most, regular = data.draw(st.integers(1, 5) | st.none()), data.draw(st.sets(st.integers(1, 50)))
    left = [step for step in saved if step not in superfluous(saved, best, most, regular)]
    assert saved[-1] in left
    assert best is None or best in left
    assert most is None or len(left) <= most + (best is not None)
    if most is None:
        assert regular & steps <= set(left)


def test_the_best_is_meant_or_else_the_newest_or_a_step(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        choose_checkpoint(tmp_path / CHECKPOINTS)
    keep(tmp_path, [2, 4], set())
    assert choose_checkpoint(tmp_path / CHECKPOINTS) == checkpoint_folder(tmp_path / CHECKPOINTS, 4)
    keep(tmp_path, [6, 8, 10], {6}, every=2)
    assert choose_checkpoint(tmp_path / CHECKPOINTS) == checkpoint_folder(tmp_path / CHECKPOINTS, 6)
    assert choose_checkpoint(tmp_path / CHECKPOINTS, 10) == checkpoint_folder(tmp_path / CHECKPOINTS, 10)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5; it has those of steps 4, 6, 8, 10$"):
        choose_checkpoint(tmp_path / CHECKPOINTS, 5)
    with pytest.raises(CheckpointError, match="it has no complete checkpoint"):
        choose_checkpoint(tmp_path / "other" / CHECKPOINTS, 5)


def test_a_damaged_note_is_reported(tmp_path: Path) -> None:
    keep(tmp_path, [2], {2})
    (tmp_path / CHECKPOINTS / BEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"best\.json is damaged .*; remove it"):
        best_checkpoint(tmp_path / CHECKPOINTS)
    (tmp_path / CHECKPOINTS / BEST).unlink()
    assert choose_checkpoint(tmp_path / CHECKPOINTS) == checkpoint_folder(tmp_path / CHECKPOINTS, 2)


def test_a_checkpoint_that_cannot_be_removed_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / CHECKPOINTS / "step-2.removed").write_text("in the way, and no folder")
    assert keep(tmp_path, [2, 4], set(), keep=1, every=2) == [2, 4]
    assert "could not be removed" in caplog.text


def test_the_only_checkpoint_that_can_be_loaded_stays(tmp_path: Path) -> None:
    layout, checkpoints = layout_of(), tmp_path / CHECKPOINTS
    for step in (20, 25, 30):
        draft = begin_checkpoint(checkpoints, step)
        files = save_shard(Shard(layout, 0, 1), draft / EMBEDDINGS)
        publish_checkpoint(checkpoints, draft, manifest_of(layout, step, files))
    assert removable(checkpoints, [20, 25]) == [20, 25]
    for step in (25, 30):
        manifest = checkpoint_folder(checkpoints, step) / MANIFEST
        manifest.write_bytes(manifest.read_bytes()[:-9])
    assert removable(checkpoints, [20, 25]) == [25]
