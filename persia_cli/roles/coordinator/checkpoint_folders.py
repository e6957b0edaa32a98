"""The folders of checkpoints: each is begun, then published or removed. All of it waits for disks or stores."""

# Invariants:
#
# - A checkpoint has its name and its manifest only when all its files are written.
# - A checkpoint that is published is saved, even if the pointer to the best one cannot be written: commands get it,
#   and the pointer is written with the next attempt.
# - Nothing is saved into a folder that another run has claimed since: the job fails.
# - The record in a checkpoint is whole at each moment: the manifest names the old copy until the new one is complete.

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import AWAITED
from persia_cli.errors import CheckpointError, DiskError, UserError
from persia_cli.observe.record_state import COPIES, RECORD, copies_in, save_copies, save_scores
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.cuts import CutFolders
from persia_cli.roles.coordinator.progress import manifest_of
from persia_cli.roles.coordinator.state import BeginCheckpoint, PublishCheckpoint
from persia_cli.storage.locations import Location, address_of, location_of, remove
from persia_cli.storage.remote import within
from persia_cli.store.checkpoints.claim import require_claim
from persia_cli.store.checkpoints.manifest import (
    MANIFEST,
    Manifest,
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
from persia_cli.wire.job_messages import SaveModel

log = logging.getLogger(__name__)

LAST_COPY_S = 10.0
"""Seconds after which the last copy of the record is cancelled."""


class Checkpoints:
    """The checkpoints of a run, one after the other; all methods wait for disks or stores."""

    def __init__(self, run: Run, job: Job, metrics_bytes: Callable[[], int]) -> None:
        """`metrics_bytes` returns the size of the file of metrics."""
        self._run, self._job, self._metrics_bytes = run, job, metrics_bytes
        self._checkpoints = checkpoints_of(Path(job.run_dir), run.checkpoint.path)
        self._draft: Location = self._checkpoints
        self._beginning: BeginCheckpoint | None = None
        """The task that has begun the present checkpoint."""
        self._scores: SavedFile | DiskError | None = None
        """The file of scores in the present checkpoint, or the reason why it could not be written."""
        self._failed_saves = 0
        self._retention = Retention(self._checkpoints, run.checkpoint.keep)
        folder = checkpoint_folder(self._checkpoints, job.first_step)
        is_of_run = job.load is not None and address_of(location_of(job.load)) == address_of(folder)
        self._cuts = CutFolders(Path(job.run_dir))
        self._newest = job.first_step if is_of_run else None
        """The step of the newest checkpoint that this run saved; None without one."""

    def tidy(self, best: Best | None) -> None:
        """Complete or remove what a killed process left unfinished; `best` is the best evaluation so far."""
        if isinstance(self._checkpoints, Path):
            remove_unfinished(self._checkpoints)
        if best is not None and best.step is not None and best.step in finished_steps(self._checkpoints):
            # A process killed between publishing this checkpoint and recording it as the best has left it unmarked,
            # and so has an earlier start without `checkpoint.best_by`.
            self._retention.add(best.step, best, "best")

    def seed_best(self, tracker: EvaluationTracker, lines: Iterable[Mapping[str, Any]]) -> Best | None:
        """Return the best evaluation in lines of the record whose checkpoint exists, if no earlier start chose one."""
        if not tracker.saves_next:
            return None
        steps = set(finished_steps(self._checkpoints))
        tracker.seed(line for line in lines if line["split"] == "eval" and line["step"] in steps)
        return tracker.kept

    def begin(self, task: BeginCheckpoint) -> SaveModel | dict[str, Any] | None:
        """Carry out the task; raise ConfigError if another run has the folder now. `conclude` reports disk errors."""
        step = task.phase.last
        if task.phase.trigger == "publish":
            return self._cuts.begin(task)
        if self._run.checkpoint.path is not None:
            with suppress(OSError, CheckpointError):  # The store does not answer; the save that follows reports it.
                require_claim(self._checkpoints, Path(self._job.run_dir))
        task = replace(task, progress=msgspec.structs.replace(task.progress, metrics_bytes=self._metrics_bytes()))
        if self.has(step):
            return self._renew(task)  # the model is saved; only its evaluation is new
        self._beginning = task
        self._draft = begin_checkpoint(self._checkpoints, step)
        try:
            self._scores = save_scores(self._draft, task.state.scores, task.state.recent)
        except DiskError as error:
            self._scores = error
        return SaveModel(address_of(self._draft), step, awaited=task.phase.trigger in AWAITED)

    def conclude(self, task: PublishCheckpoint) -> list[dict[str, Any]]:
        """Publish the checkpoint, or abort it if a part of it could not be written; return the events of the result.

        An aborted checkpoint is removed from a disk, which frees its space: no replica writes into it after this. In
        an object store, which may not answer now, it stays until the end of the job. A checkpoint is saved as soon as
        it is published; a second event follows if the best one could not be recorded.
        """
        if (cut := self._cuts.beginning) is not None:
            return [self._cuts.conclude(task, partial(manifest_of, self._run, cut))]
        start = self._beginning
        assert start is not None
        try:
            if isinstance(self._scores, DiskError):
                raise self._scores
            if task.failure:
                raise DiskError(task.failure)
            saved = self._publish(task, start)
        except (DiskError, CheckpointError) as error:
            if isinstance(self._checkpoints, Path):
                remove_unfinished(self._checkpoints)
            return [self._failed(task.step, error)]
        try:
            self._retention.add(task.step, start.best, start.phase.trigger)
        except (DiskError, CheckpointError) as error:
            return [saved, self._failed(task.step, error)]
        return [saved]

    def _failed(self, step: int, error: Exception) -> dict[str, Any]:
        """Return the event of a save that has failed."""
        self._failed_saves += 1
        return {"event": "save_failed", "step": step, "given_up": self._failed_saves, "text": str(error)}

    def _publish(self, task: PublishCheckpoint, start: BeginCheckpoint) -> dict[str, Any]:
        """Write the checkpoint's manifest and give it its name; return its event, with path, size and number of rows.

        Raise CheckpointError if a file is missing, DiskError if one cannot be written.
        """
        step, scores = task.step, self._scores
        assert isinstance(scores, SavedFile)
        progress, trigger = start.progress, start.phase.trigger
        copies = save_copies(Path(self._job.run_dir), self._draft, COPIES[0], progress.metrics_bytes)
        manifest = manifest_of(self._run, start, [*task.files, scores, *copies])
        folder = publish(self._checkpoints, self._draft, manifest)
        self._newest = step
        return {
            "event": "saved",
            "path": str(folder),
            "step": step,
            "trigger": trigger,
            "nbytes": sum(file.nbytes for file in manifest.files),
            "rows": manifest.row_count(with_dense=False),
        }

    def has(self, step: int) -> bool:
        """Return True if the run has a complete checkpoint of the step, saved before the evaluation that was due."""
        try:
            return step in finished_steps(self._checkpoints)
        except CheckpointError:
            return False  # The store does not answer; the save that follows reports it.

    def _renew(self, task: BeginCheckpoint) -> dict[str, Any] | None:
        """Update the record in the checkpoint of a step whose model has been evaluated since.

        Return the event of a save that has failed if it cannot be written; raise CheckpointError if it is damaged.
        """
        step = task.phase.last
        folder = checkpoint_folder(self._checkpoints, step)
        manifest = decode_manifest(folder)
        try:
            self._renew_record(folder, msgspec.structs.replace(manifest, progress=task.progress))
            self._retention.add(step, task.best, manifest.trigger)
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
        for name in old:
            with suppress(OSError, DiskError, CheckpointError):
                remove(folder / name, MANIFEST)
