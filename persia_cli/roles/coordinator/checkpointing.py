"""The publication of checkpoints: the files of all replicas, and the manifest that completes them."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import AWAITED, Phase, Trigger
from persia_cli.errors import CheckpointError, DiskError, DiskFaultError, UserError
from persia_cli.observe.record_state import COPIES, RECORD, RecordState, copies_in, save_copies, save_scores
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.storage.locations import Location, address_of, location_of, remove
from persia_cli.storage.remote import within
from persia_cli.store.checkpoints.manifest import (
    COLD,
    EMBEDDINGS,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    RunProgress,
    SavedTable,
    TrackedMetric,
    TrackedPlateau,
    begin_checkpoint,
    checkpoint_folder,
    checkpoints_of,
    decode_manifest,
    finished_steps,
    kind_of,
    publish,
    write_checked,
)
from persia_cli.store.checkpoints.retention import Retention, remove_unfinished
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.version import __version__
from persia_cli.wire.job_messages import SaveModel

log = logging.getLogger(__name__)

LAST_COPY_S = 10.0
"""Seconds after which the last copy of the record is cancelled."""


class CoordinatorPart(NamedTuple):
    """The coordinator's part of a checkpoint, fixed when the saving phase begins."""

    step: int
    samples: int
    progress: RunProgress
    best: Best | None
    """Given if the checkpoint is the best so far."""
    scores: SavedFile | None
    trigger: Trigger


class SaveStarted(NamedTuple):
    """The result of starting a save on disk."""

    draft: str
    scores: SavedFile | None
    failure: str
    """The reason why the scores could not be written, or empty."""
    progress: RunProgress


class Checkpointing:
    """The checkpoints of a run, one after the other.

    `reset`, `add`, `note_death`, `repeat` and `require_saved` only change memory; all other methods wait for disks or
    stores.
    """

    def __init__(self, run: Run, job: Job, tracker: EvaluationTracker) -> None:
        self._run, self._job, self._tracker = run, job, tracker
        self._checkpoints = checkpoints_of(Path(job.run_dir), run.checkpoint.path)
        self._draft: Location = self._checkpoints
        self._failures: list[str] = []
        """Reasons why parts of the present checkpoint could not be written."""
        self._lost: tuple[int, str] | None = None
        """The step of the last save and its error, if it failed."""
        self.disturbed = False
        """True if a replica died while it wrote files of the last save."""
        self._failed_saves = 0
        self._files: dict[str, Sequence[SavedFile]] = {}
        self._own_part: CoordinatorPart | None = None
        self._retention = Retention(self._checkpoints, run.checkpoint.keep)
        folder = checkpoint_folder(self._checkpoints, job.first_step)
        is_own = job.load is not None and address_of(location_of(job.load)) == address_of(folder)
        self._newest = job.first_step if is_own else None
        """The step of the newest checkpoint that this run saved; None without one."""

    def tidy(self) -> None:
        """Complete or remove what a killed process left unfinished; called when training begins."""
        if isinstance(self._checkpoints, Path):
            remove_unfinished(self._checkpoints)
        step = self._tracker.kept_step
        if step is not None and step in finished_steps(self._checkpoints):
            # A process killed between publishing this checkpoint and recording it as the best has left it unmarked,
            # and so has an earlier start without `checkpoint.best_by`.
            self._retention.add(step, self._tracker.best_at(step), "best")

    def seed_best(self, lines: Iterable[Mapping[str, Any]]) -> Best | None:
        """Return the best evaluation in lines of the record whose checkpoint exists, if no earlier start chose one."""
        if not self._tracker.saves_next:
            return None
        steps = set(finished_steps(self._checkpoints))
        self._tracker.seed(line for line in lines if line["split"] == "eval" and line["step"] in steps)
        step = self._tracker.kept_step
        return None if step is None else self._tracker.best_at(step)

    def reset(self) -> None:
        """Clear the state of the last save; `begin` of the next one follows."""
        self._files, self._failures, self._lost, self.disturbed = {}, [], None, False

    def begin(self, phase: Phase, samples: int, state: Callable[[], RecordState]) -> SaveModel:
        """Create the folder of a checkpoint, and return the replicas' instruction to write into it.

        `samples` is the number of trained samples, and `state` returns that of the record at this moment. Errors of
        writing are reported by `conclude`.
        """
        step = phase.last
        # Training may continue before all is written, so the coordinator's part of the checkpoint is fixed here.
        best = self._tracker.best_at(step)
        begun = self._begin(phase, state())
        if begun.failure:
            self._failures.append(begun.failure)
        self._own_part = CoordinatorPart(
            step, samples, begun.progress, replace(best) if best else None, begun.scores, phase.trigger
        )
        awaited = phase.trigger in AWAITED
        return SaveModel(begun.draft, step, awaited)

    def _begin(self, phase: Phase, state: RecordState) -> SaveStarted:
        self._draft = draft = begin_checkpoint(self._checkpoints, phase.last)
        scores, failure = None, ""
        try:
            scores = save_scores(draft, state.scores, state.recent)
        except DiskError as error:
            failure = str(error)
        return SaveStarted(address_of(draft), scores, failure, self._progress(state, phase.evaluation_due))

    def add(self, name: str, files: Sequence[SavedFile], failure: str = "") -> None:
        """Record the files that a replica wrote, or the reason why it could not."""
        self._files[name] = files
        if failure:
            self._failures.append(failure)

    def note_death(self) -> None:
        """Record the death of a replica whose files belong to the checkpoint."""
        self.disturbed = True

    def has_failed(self, step: int) -> bool:
        """Return True if the last save was that of this step, and failed."""
        return self._lost is not None and self._lost[0] == step

    def conclude(self) -> dict[str, Any]:
        """Publish the checkpoint, or abort it if a part of it could not be written; return the event of the result.

        An aborted checkpoint is removed from a disk, which frees its space: no replica writes into it any more. In an
        object store, which may not answer now, it stays until the end of the job.
        """
        assert self._own_part is not None
        try:
            if self._failures:
                raise DiskError(self._failures[0])
            event = self.publish()
        except (DiskError, CheckpointError) as error:
            if isinstance(self._checkpoints, Path):
                remove_unfinished(self._checkpoints)
            return self._failed(self._own_part.step, error)
        return event

    def _failed(self, step: int, error: Exception) -> dict[str, Any]:
        """Return the event of a save that has failed."""
        self._failed_saves += 1
        self._lost = (step, str(error))
        return {"event": "save_failed", "step": step, "given_up": self._failed_saves, "text": str(error)}

    def require_saved(self, step: int) -> None:
        """Raise DiskFaultError if the save of this step, the last one, failed."""
        if self._lost is not None and self._lost[0] == step:
            raise DiskFaultError(f"the model of step {step:,} was not saved: {self._lost[1]}")

    def publish(self) -> dict[str, Any]:
        """Write the checkpoint's manifest and give it its name; return its event, with path, size and number of rows.

        Older checkpoints that are not retained are removed. Raise CheckpointError if a file is missing, DiskError if
        one cannot be written.
        """
        assert self._own_part is not None
        step, samples, progress, best, scores, trigger = self._own_part
        assert scores is not None
        copies = save_copies(Path(self._job.run_dir), self._draft, COPIES[0], progress.metrics_bytes)
        files = [*(file for name in sorted(self._files) for file in self._files[name]), scores, *copies]
        layout = embedding_layout(self._run)
        rows = [file.rows for file in files if file.rows is not None and file.folder in (EMBEDDINGS, COLD)]
        totals = {
            group.number: sum(sum(part.tables.values()) for part in rows if part.group == group.number)
            for group in layout.groups
        }
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            persia_version=__version__,
            step=step,
            samples=samples,
            seed=self._run.seed,
            config=self._run.model_dump(mode="json"),
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
            progress=progress,
            files=files,
            trigger=trigger,
        )
        folder = publish(self._checkpoints, self._draft, manifest)
        self._newest = step
        self._retention.add(step, best, trigger)
        return {
            "event": "saved",
            "path": str(folder),
            "step": step,
            "trigger": trigger,
            "nbytes": sum(file.nbytes for file in files),
            "rows": sum(totals[group.number] for group in layout.feature_groups),
        }

    def has(self, step: int) -> bool:
        """Return True if the run has a complete checkpoint of the step, saved before the evaluation that was due."""
        try:
            return step in finished_steps(self._checkpoints)
        except CheckpointError:
            return False  # The store does not answer; the save that follows reports it.

    def renew(self, step: int, state: Callable[[], RecordState]) -> dict[str, Any] | None:
        """Update the record in the checkpoint of a step whose model has been evaluated since.

        Return the event of a save that has failed if it cannot be written; raise CheckpointError if it is damaged.
        """
        folder = checkpoint_folder(self._checkpoints, step)
        manifest = decode_manifest(folder)
        try:
            self._renew_record(folder, msgspec.structs.replace(manifest, progress=self._progress(state())))
            self._retention.add(step, self._tracker.best_at(step), manifest.trigger)
        except DiskError as error:
            return self._failed(step, error)
        return None

    def complete_record(self) -> None:
        """Update the copy of the record in the newest remote checkpoint, once it contains the end of the job.

        A store that refuses the copy or does not answer only causes a warning.
        """
        if self._newest is None or self._job.task != "train" or self._run.checkpoint.path is None:
            return
        folder = checkpoint_folder(self._checkpoints, self._newest)
        try:
            with within(LAST_COPY_S):
                self._renew_record(folder, decode_manifest(folder))
        except UserError as error:
            log.warning("%s has no copy of the end of the record: %s", folder, error)

    def _renew_record(self, folder: Location, manifest: Manifest) -> None:
        """Write a new copy of the record into a checkpoint, then its manifest; raise DiskError."""
        old = {file.folder for file in copies_in(manifest)}
        others = [file for file in manifest.files if file.folder not in old]
        [beginning] = {file.folder.removesuffix(RECORD) for file in others if kind_of(file) == RECORD}
        name = next(name for name in COPIES if f"{beginning}{name}" not in old)
        # The manifest names the old copy until the new one is complete, so the checkpoint is valid at each moment.
        copies = save_copies(Path(self._job.run_dir), folder, f"{beginning}{name}", manifest.progress.metrics_bytes)
        write_checked(folder / MANIFEST, msgspec.structs.replace(manifest, files=[*others, *copies]))
        for each in old:
            with suppress(OSError, DiskError, CheckpointError):
                remove(folder / each, MANIFEST)

    def _progress(self, state: RecordState, evaluation_due: bool = False) -> RunProgress:
        return RunProgress(
            train_rows=self._job.train_rows,
            train_data=self._job.train_data,
            eval_rows=self._job.eval_rows,
            metrics_bytes=state.metrics_bytes,
            look_ups=state.look_ups,
            unknown=state.unknown,
            hits=state.tables.hits,
            misses=state.tables.misses,
            evicted=state.tables.evicted,
            tracked=[_tracked_metric(best) for best in self._tracker.tracked],
            plateaus=tuple(TrackedPlateau(p.of, _tracked_metric(p.best), p.reductions) for p in self._tracker.plateaus),
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
