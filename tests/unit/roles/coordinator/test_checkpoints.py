"""The manifest that the coordinator gives a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import Phase
from persia_cli.errors import ConfigError
from persia_cli.observe.journal import METRICS
from persia_cli.observe.record_state import RecordState, copies_in
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.checkpoint_folders import Checkpoints
from persia_cli.roles.coordinator.progress import progress_of
from persia_cli.roles.coordinator.state import BeginCheckpoint, PublishCheckpoint
from persia_cli.store.checkpoints.claim import claim
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    RunProgress,
    SavedTable,
    finished_steps,
    read_manifest,
)
from persia_cli.store.checkpoints.retention import BEST, choose_checkpoint
from persia_cli.store.shard import Shard
from persia_cli.wire.job_messages import SaveModel
from persia_cli.wire.message import TableTotals
from tests.support.runs import make_run
from tests.support.saving import save_shard

STATE = RecordState(ScoreHistogram(1), 30, 10, TableTotals(rows=9, evicted=1, hits=20, misses=5), ())


class SavingRun:
    """The checkpoints of a run of one server, which has no rows."""

    def __init__(self, run: Run, run_dir: Path, tracker: EvaluationTracker | None = None) -> None:
        self.run, self.tracker, self.metrics_bytes = run, tracker or EvaluationTracker(), 123
        self.job = Job("train", str(run_dir), None, train_rows=96, eval_rows=32, steps=30, eval_steps=1)
        (run_dir / METRICS).write_bytes(b"\n" * 200)
        self.checkpoints = Checkpoints(run, self.job, lambda: self.metrics_bytes)
        self.nbytes = 0
        """Bytes of the files of rows."""

    def begin(self, step: int) -> SaveModel | dict[str, Any] | None:
        phase = Phase("saving", last=step, trigger="steps" if step % 5 == 0 else "signal", evaluation_due=step == 7)
        progress = progress_of(self.job, STATE, self.tracker, phase.evaluation_due)
        return self.checkpoints.begin(BeginCheckpoint(phase, 32 * step, STATE, progress, self.tracker.best_at(step)))

    def save(self, step: int) -> dict[str, Any]:
        [event] = self.events(step)
        return event

    def events(self, step: int) -> list[dict[str, Any]]:
        """The events of a save."""
        begun = self.begin(step)
        assert isinstance(begun, SaveModel)
        folder = Path(begun.folder) / EMBEDDINGS
        folder.mkdir()
        files = save_shard(Shard(embedding_layout(self.run), 0, 1), folder)
        self.nbytes = sum(file.nbytes for file in files)
        return self.checkpoints.conclude(PublishCheckpoint(step, tuple(files), ""))


def test_the_manifest_has_every_table_and_the_run(tmp_path: Path) -> None:
    tables = {"b": {"dim": 4, "dtype": "float16"}, "c": {"share": 0.5, "hash_stack": {"rounds": 2, "size": 9}}}
    run = make_run(["a", "b", "c", "d"], embedding={"dtype": "bfloat16", "tables": tables}, seed=3)
    saving = SavingRun(run, tmp_path)
    saved = saving.save(7)
    assert (saved["step"], saved["rows"]) == (7, 0)
    assert saved["nbytes"] > saving.nbytes
    manifest = read_manifest(Path(saved["path"]))
    assert manifest.tables == [
        SavedTable("a", 8, "bfloat16", 0, rows=0),
        SavedTable("d", 8, "bfloat16", 0, rows=0),
        SavedTable("b", 4, "float16", 1, rows=0),
        SavedTable("c", 8, "bfloat16", 2, rows=0),
    ]
    assert (manifest.step, manifest.samples, manifest.seed) == (7, 224, 3)
    assert Run.model_validate(manifest.config) == run
    assert manifest.progress == RunProgress(96, 32, 123, 30, 10, 20, 5, 1, [], evaluation_due=True)
    assert manifest.trigger == saved["trigger"] == "signal"
    saving.metrics_bytes = 200
    assert saving.begin(7) is None
    renewed = read_manifest(Path(saved["path"]))
    assert renewed.progress == RunProgress(96, 32, 200, 30, 10, 20, 5, 1, [], evaluation_due=True)
    assert replace(renewed, progress=manifest.progress, files=manifest.files) == manifest
    assert [file for file in renewed.files if file not in copies_in(renewed)] == [
        file for file in manifest.files if file not in copies_in(manifest)
    ]
    assert not {file.folder for file in copies_in(renewed)} & {file.folder for file in copies_in(manifest)}


def test_lines_that_wait_for_space_cost_the_save_and_its_renewal(tmp_path: Path) -> None:
    run = make_run()
    saving = SavingRun(run, tmp_path)
    assert saving.save(7)["event"] == "saved"
    (tmp_path / METRICS).write_bytes(b"\n" * 100)
    renewed = saving.begin(7)
    assert isinstance(renewed, dict)
    assert str(tmp_path / METRICS) in renewed["text"]
    assert saving.save(8)["event"] == "save_failed"


def test_a_part_that_could_not_be_written_costs_the_save(tmp_path: Path) -> None:
    saving = SavingRun(make_run(), tmp_path)
    saving.begin(5)
    [failed] = saving.checkpoints.conclude(PublishCheckpoint(5, (), "the disk is full"))
    assert failed == {"event": "save_failed", "step": 5, "given_up": 1, "text": "the disk is full"}
    assert list((tmp_path / CHECKPOINTS).iterdir()) == []


def test_a_checkpoint_is_saved_although_it_cannot_be_recorded_as_the_best(tmp_path: Path) -> None:
    tracker = EvaluationTracker(keep=Best("auc", "high"))
    saving = SavingRun(make_run(), tmp_path, tracker)
    tracker.add(5, {"auc": 0.8})
    pointer = tmp_path / CHECKPOINTS / BEST
    pointer.mkdir(parents=True)
    saved, failed = saving.events(5)
    assert (saved["event"], failed["event"], failed["step"]) == ("saved", "save_failed", 5)
    assert read_manifest(Path(saved["path"])).step == 5
    pointer.rmdir()
    assert saving.begin(5) is None, "only the pointer is written"
    assert choose_checkpoint(tmp_path / CHECKPOINTS).name == "step-5"


def test_a_run_saves_nothing_where_another_one_has_started_since(tmp_path: Path) -> None:
    """Nothing was saved there, so neither of two runs that start at once on two machines was refused."""
    saved, first, second = (tmp_path / name for name in ("saved", "first", "second"))
    run = make_run(checkpoint={"path": str(saved)})
    for folder in (first, second):
        folder.mkdir()
        claim(str(saved), folder, folder.name)
    assert SavingRun(run, second).save(5)["event"] == "saved"
    for step in (5, 6):
        with pytest.raises(ConfigError, match=f"{first} was taken over by {second} on second; persia resume {saved}"):
            SavingRun(run, first).begin(step)
    assert finished_steps(saved) == [5]


def test_a_resume_finds_the_best_evaluation_whose_checkpoint_exists(tmp_path: Path) -> None:
    run = make_run()
    for step in (5, 10):
        SavingRun(run, tmp_path).save(step)
    tracker = EvaluationTracker(keep=Best("auc", "high"))
    resumed = SavingRun(run, tmp_path, tracker).checkpoints
    lines = [{"split": "eval", "step": step, "auc": auc} for step, auc in ((4, 0.9), (5, 0.8), (10, 0.7))]
    best = resumed.seed_best(tracker, lines)
    resumed.tidy(best)
    assert best is not None
    assert (best.step, best.value, choose_checkpoint(tmp_path / CHECKPOINTS).name) == (5, 0.8, "step-5")
    assert resumed.seed_best(tracker, lines[2:]) is None
