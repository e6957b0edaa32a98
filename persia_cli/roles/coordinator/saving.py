"""A save: replicas write their files, possibly beyond the saving phase; then the checkpoint is published."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import Phase
from persia_cli.errors import DiskFaultError, WireError
from persia_cli.observe.record_state import RecordState
from persia_cli.plan.job import COORDINATOR, Job
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.state import (
    BeginCheckpoint,
    JobState,
    PublishCheckpoint,
    TidyCheckpoints,
)
from persia_cli.store.checkpoints.manifest import RunProgress, TrackedMetric, TrackedPlateau
from persia_cli.store.checkpoints.saved import SavedFile, decode_files
from persia_cli.wire.job_messages import Saved, SaveModel
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

PUBLISHER = f"{COORDINATOR}-0"
"""The last participant of a save: it publishes the files of the others."""


class Saving:
    """The saves of a job, one after the other.

    A checkpoint is published once, after every participant has written its part; a part that could not be written, or
    whose writer died, aborts it.
    """

    def __init__(self, state: JobState, save_requests: SaveRequests) -> None:
        self._state, self._save_requests = state, save_requests
        self._started = False
        """True once the folder is ready and replicas get the instruction to write."""
        self._files: dict[str, Sequence[SavedFile]] = {}
        self._failure = ""
        """The reason why a part of the present checkpoint could not be written, or empty."""
        self._is_disturbed = False
        """True if a replica died while it wrote files of the last save."""
        self._lost: tuple[int, str] | None = None
        """The step of the last save and its error, if it failed."""

    def tidy(self) -> None:
        """Have removed what an earlier start of the training left unfinished."""
        tracker = self._state.tracker
        step = tracker.kept_step
        self._state.start(TidyCheckpoints(None if step is None else _copied(tracker.best_at(step))))

    def begin(self, phase: Phase, samples: int) -> None:
        """Begin a saving phase, of a model trained with `samples` samples."""
        state, record = self._state, self._state.record.state()
        state.phases.writing.add(PUBLISHER)
        self._started, self._files, self._failure, self._lost = False, {}, "", None
        self._is_disturbed = False
        # Training may continue before all is written, so the coordinator's part of the checkpoint is fixed here.
        progress = progress_of(state.job, record, state.tracker, phase.evaluation_due)
        state.start(BeginCheckpoint(phase, samples, record, progress, _copied(state.tracker.best_at(phase.last))))

    def on_begun(self, result: SaveModel | dict[str, Any] | None) -> SaveModel | None:
        """Return the instruction for the replicas; None if the model is saved already."""
        self._started = True
        if isinstance(result, dict):
            self._record_end(result)
        return result if isinstance(result, SaveModel) else None

    def on_saved(self, peer: Peer, message: Saved) -> None:
        """Record the files that a replica has written, or the reason why it could not; raise WireError for others."""
        member = self._state.find(message.sender)
        try:
            files = decode_files(message.files)
        except ValueError as error:
            raise WireError(f"{member.name} has sent an invalid list of files: {error}") from error
        self._state.reply(peer, Ack())
        self._add(message.step, member.name, files, message.failure)

    def on_death(self, name: str, how: str) -> None:
        """Abort the checkpoint if a dead replica was writing files of it.

        A replica that dies before it gets the instruction to save does not disturb: its new process gets it.
        """
        phases = self._state.phases
        if name in phases.writing:
            self._is_disturbed = True
        if phases.current is not None and not (phases.current.kind == "saving" and name in phases.waiting):
            self._add(phases.saved_step, name, (), f"{name} {how} while it wrote its rows")

    def _add(self, step: int, name: str, files: Sequence[SavedFile], failure: str) -> None:
        phases = self._state.phases
        if self._state.stopping or not self._started or not phases.note_written(name, step):
            return
        self._files[name] = files
        self._failure = self._failure or failure
        if phases.writing == {PUBLISHER}:
            written = [file for name in sorted(self._files) for file in self._files[name]]
            self._state.start(PublishCheckpoint(step, tuple(written), self._failure))

    def on_published(self, event: dict[str, Any]) -> None:
        """Record that a checkpoint is complete, or aborted."""
        self._state.phases.note_written(PUBLISHER, event["step"])
        self._record_end(event)

    def _record_end(self, event: dict[str, Any]) -> None:
        """Record the end of a save; one that has failed is tried again, at once if a death was the cause."""
        if event["event"] == "save_failed":
            self._lost = event["step"], event["text"]
            event = event | {"retry_s": self._save_requests.retry(at_once=self._is_disturbed)}
        self._state.events.write(**event)
        self._save_requests.note_saved(event)

    def has_failed(self, step: int) -> bool:
        """Return True if the last save was that of this step, and failed."""
        return self._lost is not None and self._lost[0] == step

    def require_saved(self, step: int) -> bool:
        """Return True unless the save of this step, the last one, failed; then fail the job."""
        if self._lost is None or not self.has_failed(step):
            return True
        text = f"the model of step {step:,} was not saved: {self._lost[1]}"
        self._state.abort(text, DiskFaultError.exit_code)
        return False


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
    )


def _tracked_metric(best: Best) -> TrackedMetric:
    return TrackedMetric(best.metric, best.step, best.value, best.since)


def restore_tracker(tracker: EvaluationTracker, progress: RunProgress) -> None:
    """Restore a tracker from the progress in a checkpoint."""
    tracker.restore([(each.metric, each.step, each.value, each.since) for each in progress.tracked])
    saved = {each.of: each for each in progress.plateaus}
    for plateau in tracker.plateaus:
        if each := saved.get(plateau.of):
            plateau.restore(each.best.metric, each.best.step, each.best.value, each.best.since, each.reductions)


def _copied(best: Best | None) -> Best | None:
    return replace(best) if best else None
