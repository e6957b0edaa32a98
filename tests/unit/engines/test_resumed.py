"""The record of a run that is resumed: what goes, what stays, and what is refused before anything has changed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from persia_cli.control.evaluation_tracker import Best
from persia_cli.engines.job import COORDINATOR_ADDRESS, prepared_run_dir
from persia_cli.engines.resumed import continue_record, locked, newest_of, newest_sound, record_so_far, start_over
from persia_cli.errors import CheckpointError, UserError
from persia_cli.observe.journal import EVENTS, METRICS, Journal, is_being_written
from persia_cli.observe.record_state import save_copies
from persia_cli.roles.coordinator.checkpoint_folders import Checkpoints
from persia_cli.store.checkpoints.manifest import CHECKPOINTS, MANIFEST, read_manifest, write_checked
from persia_cli.store.checkpoints.retention import best_checkpoint
from tests.support.jobs import plan
from tests.support.runs import make_run
from tests.support.saved_rows import made_up_rows, write_run

BEFORE, AFTER = b'{"step": 5, "split": "eval"}\n', b'{"step": 9, "split": "eval"}\n{"step'
"""Lines of metrics up to the checkpoint, and what came after it."""
OF_FIVE = b'{"event": "calibrated", "step": 5}\n'
EVENT_LINES = OF_FIVE + b'{"event": "saved", "step": 5}\n[]\n{"event": "calibrated", "step": 9}\n'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The newest checkpoint of a run that was killed later."""
    run_dir = tmp_path / "run"
    made = write_run(run_dir, make_run(), 9, [made_up_rows(20, 8, 9, ("a",))], {})
    manifest = read_manifest(made)
    progress = msgspec.structs.replace(manifest.progress, metrics_bytes=len(BEFORE))
    (run_dir / METRICS).write_bytes(BEFORE + AFTER)
    (run_dir / EVENTS).write_bytes(EVENT_LINES)
    files = [*manifest.files, *save_copies(run_dir, made, "run", 0)]
    write_checked(made / MANIFEST, msgspec.structs.replace(manifest, progress=progress, files=files))
    (run_dir / "roles").mkdir()
    (run_dir / "roles" / "coordinator-0.log").write_text("a log\n")
    return made


@pytest.fixture
def take_up(checkpoint: Path, tmp_path: Path) -> Callable[..., None]:
    def take(run_dir: Path | None = None) -> None:
        job = plan(["conf=synthetic", "cluster=embedded"], run_dir or checkpoint.parents[1])
        job = replace(job, job=replace(job.job, load=str(checkpoint)))
        with locked(job.run_dir):
            continue_record(job, record_so_far(job), moved=(EVENTS, "roles"), copied=("config.yaml", "job.json"))

    return take


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_lines_after_the_checkpoint_go_and_the_last_start_is_kept(
    checkpoint: Path, take_up: Callable[..., None]
) -> None:
    run_dir = checkpoint.parents[1]
    (run_dir / CHECKPOINTS / "step-12.partial").mkdir()
    events = (run_dir / EVENTS).read_bytes()
    take_up()
    assert (run_dir / METRICS).read_bytes() == BEFORE
    assert (run_dir / EVENTS).read_bytes() == OF_FIVE, "what describes the evaluation that stays"
    assert (run_dir / CHECKPOINTS / "step-12.partial").exists(), "the job may still be refused"
    kept = content(run_dir / "earlier" / "start")
    assert kept == {
        EVENTS: events,
        METRICS: BEFORE + AFTER,
        "roles/coordinator-0.log": b"a log\n",
        "config.yaml": (run_dir / "config.yaml").read_bytes(),
    }
    take_up()
    assert sorted(path.name for path in (run_dir / "earlier").iterdir()) == ["start", "start-2"]


def test_another_folder_gets_a_copy_of_the_lines(
    checkpoint: Path, take_up: Callable[..., None], tmp_path: Path
) -> None:
    before = content(checkpoint.parents[1])
    (tmp_path / "other").mkdir()
    take_up(tmp_path / "other")
    assert content(tmp_path / "other") == {METRICS: BEFORE, EVENTS: OF_FIVE}
    assert content(checkpoint.parents[1]) == before
    with pytest.raises(UserError, match="contains other files"):
        take_up(tmp_path / "other")


@pytest.mark.parametrize("left", [None, BEFORE[:-1], b" " + BEFORE + AFTER])
def test_lines_that_were_removed_or_edited_come_from_the_checkpoint(
    checkpoint: Path, take_up: Callable[..., None], left: bytes | None
) -> None:
    metrics = checkpoint.parents[1] / METRICS
    metrics.unlink()
    if left is not None:
        metrics.write_bytes(left)
    take_up()
    assert metrics.read_bytes() == BEFORE


def test_a_damaged_copy_is_refused_before_anything_has_changed(checkpoint: Path, take_up: Callable[..., None]) -> None:
    (checkpoint / "run" / METRICS).write_bytes(BEFORE.upper() + AFTER)
    before = content(checkpoint.parents[1])
    with pytest.raises(CheckpointError, match="has changed since it was saved"):
        take_up()
    assert content(checkpoint.parents[1]) == before


@contextmanager
def recording(run_dir: Path, checkpoint: Path) -> Iterator[None]:
    """A coordinator that writes the record."""
    writer = Journal(run_dir / EVENTS, alone=True)
    yield
    writer.close()


@contextmanager
def launching(run_dir: Path, checkpoint: Path) -> Iterator[None]:
    """A driver whose job has no coordinator yet: it may compile kernels for minutes."""
    (run_dir / COORDINATOR_ADDRESS).write_text("ipc:///tmp/persia-of-the-last-start/coordinator-0\n")
    job = plan(["conf=synthetic", "cluster=embedded"], run_dir)
    with prepared_run_dir(replace(job, job=replace(job.job, load=str(checkpoint)))):
        assert not is_being_written(run_dir / EVENTS)
        assert not (run_dir / COORDINATOR_ADDRESS).exists(), "roles would look for the coordinator there"
        yield


@pytest.mark.parametrize("goes_on", [recording, launching])
def test_a_run_that_goes_on_is_left_alone(
    checkpoint: Path, take_up: Callable[..., None], goes_on: Callable[..., AbstractContextManager[None]]
) -> None:
    run_dir = checkpoint.parents[1]
    with goes_on(run_dir, checkpoint):
        before = content(run_dir)
        for attempt in (take_up, lambda: start_over(run_dir, (EVENTS,))):
            with pytest.raises(UserError, match="still goes on, or is being resumed by another command"):
                attempt()
        assert content(run_dir) == before
    take_up()


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "roles").mkdir(parents=True)
    (run_dir / METRICS).write_bytes(BEFORE)
    assert newest_of(run_dir / CHECKPOINTS) is None
    start_over(run_dir, ("roles",))
    assert content(run_dir) == {f"earlier/start/{METRICS}": BEFORE}
    assert (run_dir / "earlier" / "start" / "roles").is_dir()


def test_the_best_checkpoint_is_known_though_its_note_was_not_written(checkpoint: Path, tmp_path: Path) -> None:
    """A run may be killed after it has published a checkpoint and before it notes that this one is the best."""
    run_dir = checkpoint.parents[1]
    job = plan(["conf=synthetic", "cluster=embedded"], run_dir)
    best = Best("auc", "high", step=9, value=0.7)
    assert best_checkpoint(run_dir / CHECKPOINTS) is None
    elsewhere = replace(job.job, first_step=9, run_dir=str(tmp_path / "branch"))
    Checkpoints(job.run, elsewhere, lambda: 0).tidy(best)
    assert best_checkpoint(tmp_path / "branch" / CHECKPOINTS) is None
    (run_dir / CHECKPOINTS / "step-12.partial").mkdir()
    checkpoints = Checkpoints(job.run, replace(job.job, first_step=9), lambda: 0)
    assert best_checkpoint(run_dir / CHECKPOINTS) is None, "the job may still be refused"
    checkpoints.tidy(best)
    assert not (run_dir / CHECKPOINTS / "step-12.partial").exists()
    assert best_checkpoint(run_dir / CHECKPOINTS) == checkpoint


def test_a_checkpoint_of_another_format_is_not_set_aside_as_damaged(checkpoint: Path) -> None:
    write_checked(checkpoint / MANIFEST, msgspec.structs.replace(read_manifest(checkpoint), format_version=13))
    before = content(checkpoint.parent)
    with pytest.raises(CheckpointError, match="has checkpoint format 13"):
        newest_sound(checkpoint.parent, whole=False, report=print)
    assert content(checkpoint.parent) == before
