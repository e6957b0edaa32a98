"""The progress of a run in the manifest of a checkpoint, and back."""

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.observe.record_state import RecordState
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.state import BeginCheckpoint
from persia_cli.store.checkpoints.manifest import (
    COLD,
    EMBEDDINGS,
    FORMAT_VERSION,
    Manifest,
    RunProgress,
    SavedTable,
    TrackedMetric,
    TrackedPlateau,
)
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.version import __version__


def manifest_of(run: Run, start: BeginCheckpoint, files: list[SavedFile]) -> Manifest:
    """Return the manifest of the checkpoint that a task has begun, with these files."""
    layout = embedding_layout(run)
    rows = [file.rows for file in files if file.rows is not None and file.folder in (EMBEDDINGS, COLD)]
    totals = {
        group.number: sum(sum(part.tables.values()) for part in rows if part.group == group.number)
        for group in layout.groups
    }
    return Manifest(
        format_version=FORMAT_VERSION,
        persia_version=__version__,
        step=start.phase.last,
        samples=start.samples,
        seed=run.seed,
        config=run.model_dump(mode="json"),
        tables=[
            SavedTable(
                name=table.name,
                dim=group.dim,
                dtype=group.dtype,
                group=group.number,
                rows=sum(part.tables.get(table.name, 0) for part in rows if part.group == group.number),
            )
            for group in layout.groups
            for table in group.tables
        ],
        groups={str(number): total for number, total in totals.items()},
        progress=start.progress,
        files=files,
        trigger=start.phase.trigger,
    )


def progress_of(job: Job, state: RecordState, tracker: EvaluationTracker, evaluation_due: bool = False) -> RunProgress:
    """Return the progress of a run for the manifest; the edge adds the size of the file of metrics."""
    return RunProgress(
        train_rows=job.train_rows,
        train_data=job.train_data,
        eval_rows=job.eval_rows,
        metrics_bytes=0,
        look_ups=state.look_ups,
        unknown=state.unknown,
        hits=state.tables.hits,
        misses=state.tables.misses,
        evicted=state.tables.evicted,
        tracked=[_tracked_metric(best) for best in tracker.tracked],
        plateaus=tuple(TrackedPlateau(p.of, _tracked_metric(p.best), p.reductions) for p in tracker.plateaus),
        evaluation_due=evaluation_due,
        calibration=state.calibration,
        decayed=dict(state.decayed),
    )


def _tracked_metric(best: Best) -> TrackedMetric:
    return TrackedMetric(best.metric, best.step, best.value, best.since)


def restore_tracker(tracker: EvaluationTracker, progress: RunProgress) -> None:
    """Restore a tracker from the progress in a checkpoint."""
    tracker.restore([(best.metric, best.step, best.value, best.since) for best in progress.tracked])
    plateaus = {plateau.of: plateau for plateau in progress.plateaus}
    for plateau in tracker.plateaus:
        if saved := plateaus.get(plateau.of):
            best = saved.best
            plateau.restore(best.metric, best.step, best.value, best.since, saved.reductions)
