"""The manifest that the coordinator gives a checkpoint."""

from pathlib import Path

from msgspec.structs import replace

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import Phase
from persia_cli.observe.journal import METRICS
from persia_cli.observe.recent_scores import RecentScores
from persia_cli.observe.record_state import RecordState, copies_in
from persia_cli.observe.scores import ScoreHistogram
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.store.checkpoints.manifest import (
    CHECKPOINTS,
    EMBEDDINGS,
    RunProgress,
    SavedTable,
    read_manifest,
)
from persia_cli.store.checkpoints.retention import choose_checkpoint
from persia_cli.store.shard import Shard
from persia_cli.wire.message import TableTotals
from tests.support.runs import make_run
from tests.support.saving import save_shard

STATE = RecordState(
    ScoreHistogram(1), 30, 10, TableTotals(rows=9, evicted=1, hits=20, misses=5), 123, RecentScores(1, 3)
)


def checkpointing_of(run: Run, run_dir: Path, tracker: EvaluationTracker | None = None) -> Checkpointing:
    job = Job("train", str(run_dir), None, train_rows=96, eval_rows=32, steps=30, eval_steps=1)
    (run_dir / METRICS).write_bytes(b"\n" * 200)
    return Checkpointing(run, job, tracker or EvaluationTracker())


def save(checkpointing: Checkpointing, run: Run, step: int) -> int:
    """Have one server write its rows, of which there are none, and report; return the bytes of its files."""
    phase = Phase("saving", last=step, trigger="steps" if step % 5 == 0 else "signal", evaluation_due=step == 7)
    folder = Path(checkpointing.begin(phase, 32 * step, lambda: STATE).folder) / EMBEDDINGS
    folder.mkdir()
    files = save_shard(Shard(embedding_layout(run), 0, 1), folder)
    checkpointing.add("embedding-server-0", files)
    return sum(file.nbytes for file in files)


def test_the_manifest_has_every_table_and_the_run(tmp_path: Path) -> None:
    tables = {"b": {"dim": 4, "dtype": "float16"}, "c": {"share": 0.5, "hash_stack": {"rounds": 2, "size": 9}}}
    run = make_run(["a", "b", "c", "d"], embedding={"dtype": "bfloat16", "tables": tables}, seed=3)
    checkpointing = checkpointing_of(run, tmp_path)
    nbytes = save(checkpointing, run, 7)
    saved = checkpointing.conclude()
    assert (saved["step"], saved["rows"]) == (7, 0)
    assert saved["nbytes"] > nbytes
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
    checkpointing.renew(7, lambda: STATE._replace(metrics_bytes=200))
    renewed = read_manifest(Path(saved["path"]))
    assert renewed.progress == RunProgress(96, 32, 200, 30, 10, 20, 5, 1, [])
    assert replace(renewed, progress=manifest.progress, files=manifest.files) == manifest
    assert [file for file in renewed.files if file not in copies_in(renewed)] == [
        file for file in manifest.files if file not in copies_in(manifest)
    ]
    assert not {file.folder for file in copies_in(renewed)} & {file.folder for file in copies_in(manifest)}


def test_lines_that_wait_for_space_cost_the_save_and_its_renewal(tmp_path: Path) -> None:
    run = make_run()
    checkpointing = checkpointing_of(run, tmp_path)
    save(checkpointing, run, 7)
    assert checkpointing.conclude()["event"] == "saved"
    (tmp_path / METRICS).write_bytes(b"\n" * 100)
    assert str(tmp_path / METRICS) in (checkpointing.renew(7, lambda: STATE) or {})["text"]
    assert checkpointing.has_failed(7)
    save(checkpointing, run, 8)
    assert checkpointing.conclude()["event"] == "save_failed"


def test_a_resume_finds_the_best_evaluation_whose_checkpoint_exists(tmp_path: Path) -> None:
    run = make_run()
    for step in (5, 10):
        checkpointing = checkpointing_of(run, tmp_path)
        save(checkpointing, run, step)
        checkpointing.conclude()
    resumed = checkpointing_of(run, tmp_path, EvaluationTracker(keep=Best("auc", "high")))
    lines = [{"split": "eval", "step": step, "auc": auc} for step, auc in ((4, 0.9), (5, 0.8), (10, 0.7))]
    best = resumed.seed_best(lines)
    resumed.tidy()
    assert best is not None
    assert (best.step, best.value, choose_checkpoint(tmp_path / CHECKPOINTS).name) == (5, 0.8, "step-5")
    assert resumed.seed_best(lines[2:]) is None
