"""The files of a checkpoint: those that every replica wrote, and the manifest that makes them one."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from persia_cli import __version__
from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import AWAITED, Phase, Trigger
from persia_cli.errors import CheckpointError, DiskError, UserError
from persia_cli.observe.record_state import COPIES, RECORD, RecordState, copies_in, save_copies, save_scores
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.storage.places import Place, address_of, place_of, remove
from persia_cli.storage.remote import within
from persia_cli.store.checkpoints.chain import is_divided, manifest_digest, read_chain
from persia_cli.store.checkpoints.claim import require_writer
from persia_cli.store.checkpoints.manifest import (
    EMBEDDINGS,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    Parent,
    RunProgress,
    SavedTable,
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
from persia_cli.wire.figures import SavedFile, TrackedFigure, TrackedPlateau
from persia_cli.wire.job_messages import SaveModel

log = logging.getLogger(__name__)

LAST_COPY_S = 10.0
"""Seconds that the last copy of the record may take."""


class Cut(NamedTuple):
    """What a checkpoint has of the coordinator, as it was when the saving phase began."""

    step: int
    samples: int
    progress: RunProgress
    best: Best | None
    """Given if the checkpoint is the best so far."""
    scores: SavedFile | None
    trigger: Trigger


class SaveStarted(NamedTuple):
    """What the beginning of a save did on disk."""

    draft: str
    scores: SavedFile | None
    failure: str
    """Why the scores could not be written."""
    parent: int | None
    """The step of the checkpoint whose rows this one changes; None if it has all rows."""
    progress: RunProgress


class ParentCheckpoint(NamedTuple):
    """The newest checkpoint, as the next one may depend on it, and the length of its chain."""

    newest: Parent | None
    length: int


class SaveResult(NamedTuple):
    """What became of a checkpoint: its event, and the newest checkpoint after that."""

    event: dict[str, Any]
    chain: ParentCheckpoint


class Checkpointing:
    """One checkpoint after another, each of the files that the replicas report.

    `reset`, `add`, `note_death`, `repeat` and `require_saved` only change memory; all else waits for disks or stores.
    """

    def __init__(self, run: Run, job: Job, tracker: EvaluationTracker) -> None:
        self._run, self._job, self._tracker = run, job, tracker
        self._checkpoints = checkpoints_of(Path(job.run_dir), run.checkpoint.path)
        self._draft: Place = self._checkpoints
        self._failures: list[str] = []
        """Why parts of the checkpoint under way could not be written."""
        self._lost: tuple[int, str] | None = None
        """Step of the last save, if it was given up, and why."""
        self._disturbed, self._tries = False, 0
        """Whether a replica that was to write files has died during the last save, and how often that was repeated."""
        self._given_up = 0
        self._files: dict[str, Sequence[SavedFile]] = {}
        self._cut: Cut | None = None
        self._retention = Retention(self._checkpoints, run.checkpoint.keep)
        self._chain = self._loaded_chain()

    def _loaded_chain(self) -> ParentCheckpoint:
        """Return the checkpoint that a resumed run goes on from, and the length of its chain.

        There is none for a run in another folder, which must not depend on this one, and for another number of servers.
        """
        folder = checkpoint_folder(self._checkpoints, self._job.first_step)
        if self._job.load is None or address_of(place_of(self._job.load)) != address_of(folder):
            return ParentCheckpoint(None, 0)
        chain = read_chain(folder)
        if not is_divided(chain.manifest, embedding_layout(self._run), self._run.cluster.embedding_servers):
            return ParentCheckpoint(None, 0)
        return ParentCheckpoint(Parent(chain.manifest.step, manifest_digest(folder)), len(chain.manifests))

    def tidy(self) -> None:
        """Finish, at the beginning of a training, what a killed start has left unfinished."""
        if isinstance(self._checkpoints, Path):
            remove_unfinished(self._checkpoints)
        first = self._job.first_step
        if (best := self._tracker.kept_at(first)) and first in finished_steps(self._checkpoints):
            # A run that was killed after it had published this checkpoint may not have noted that it is the best.
            self._retention.add(first, best, "best")

    def _parent_step(self) -> int | None:
        """Return the step of the checkpoint whose rows the next one changes; None if that one has all rows."""
        newest, length = self._chain
        if newest is None or length >= self._run.checkpoint.full_every:
            return None
        try:
            digest = manifest_digest(checkpoint_folder(self._checkpoints, newest.step))
        except CheckpointError:
            return None  # somebody has removed it
        return newest.step if digest == newest.sha256 else None

    def reset(self) -> None:
        """Forget the last save; `begin` of the next one follows."""
        self._files, self._failures, self._lost, self._disturbed = {}, [], None, False

    def begin(self, phase: Phase, samples: int, state: Callable[[], RecordState]) -> SaveModel:
        """Make the folder that replicas write the checkpoint of a saving phase into; returns what they are to do.

        What the checkpoint has of the coordinator is kept as it is now: training may go on before all is written.
        `state` returns that of the run's record, of so many samples. What cannot be written is told by `conclude`.
        """
        step = phase.last
        best = self._tracker.kept_at(step)
        begun = self._begin(phase, state())
        if begun.failure:
            self._failures.append(begun.failure)
        self._cut = Cut(step, samples, begun.progress, replace(best) if best else None, begun.scores, phase.trigger)
        awaited = phase.trigger in AWAITED or not self._run.checkpoint.while_training
        return SaveModel(begun.draft, step, begun.parent, awaited)

    def _begin(self, phase: Phase, state: RecordState) -> SaveStarted:
        self._draft = draft = begin_checkpoint(self._checkpoints, phase.last)
        scores, failure = None, ""
        try:
            scores = save_scores(draft, state.scores, state.recent)
        except DiskError as error:
            failure = str(error)
        # A store that does not answer is not asked again: each time takes long, and replicas wait for this one.
        parent = self._parent_step() if scores is not None else None
        return SaveStarted(address_of(draft), scores, failure, parent, self._progress(state, phase.evaluation_due))

    def add(self, name: str, files: Sequence[SavedFile], failure: str = "") -> None:
        """Note the files that a replica wrote, or why it could not."""
        self._files[name] = files
        if failure:
            self._failures.append(failure)

    def note_death(self) -> None:
        """Take note that a replica has died whose files belong to the checkpoint."""
        self._disturbed = True

    def repeat(self, step: int) -> bool:
        """Return whether the save of a step, the last one, is to be repeated: a death has prevented it, no disk.

        Says so `recovery.max_restarts` times at the most.
        """
        lost = self._lost is not None and self._lost[0] == step
        if not lost or not self._disturbed or self._tries >= self._run.recovery.max_restarts:
            return False
        self._tries += 1
        return True

    def conclude(self) -> dict[str, Any]:
        """Publish the checkpoint, or give it up if a part of it could not be written; return the event of either.

        What there is on a disk of a checkpoint that is given up is removed, which makes room: no replica writes it any
        more. In an object store, which may not answer now, it stays until the end of the job.
        """
        assert self._cut is not None
        event, self._chain = self._conclude()
        if event["event"] == "save_failed":
            self._lost = (self._cut.step, event["text"])
            self._given_up = event["given_up"]
        return event

    def _conclude(self) -> SaveResult:
        assert self._cut is not None
        try:
            if self._failures:
                raise DiskError(self._failures[0])
            return self.publish()
        except (DiskError, CheckpointError) as error:
            if isinstance(self._checkpoints, Path):
                remove_unfinished(self._checkpoints)
            lost = {"step": self._cut.step, "given_up": self._given_up + 1, "text": str(error)}
            return SaveResult({"event": "save_failed"} | lost, self._chain)

    def require_saved(self, step: int) -> None:
        """Raise DiskError if the model of this step, the last one, was to be saved and was not."""
        if self._lost is not None and self._lost[0] == step:
            raise DiskError(f"the model of step {step:,} was not saved: {self._lost[1]}")

    def publish(self) -> SaveResult:
        """Give the checkpoint its manifest and name; return its event, with path, size and rows of features.

        Older checkpoints go that are not to be kept. Raises CheckpointError if a file is not where it should be,
        DiskError if one cannot be written.
        """
        assert self._cut is not None
        step, samples, progress, best, scores, trigger = self._cut
        assert scores is not None
        self._require_writer()
        copies = save_copies(Path(self._job.run_dir), self._draft, COPIES[0])
        files = [*(file for name in sorted(self._files) for file in self._files[name]), scores, *copies]
        layout = embedding_layout(self._run)
        rows = [file.rows for file in files if file.rows is not None and file.folder == EMBEDDINGS]
        totals = {
            group.number: sum(sum(part.all_tables.values()) for part in rows if part.group == group.number)
            for group in layout.groups
        }
        # A server that does not know what has changed writes all rows.
        parent = self._chain.newest if any(part.changed_since is not None for part in rows) else None
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
                    rows=sum(part.all_tables.get(table.name, 0) for part in rows if part.group == group.number),
                )
                for group in layout.groups
                for table in group.tables
            ],
            groups={str(number): total for number, total in totals.items()},
            progress=progress,
            files=files,
            trigger=trigger,
            parent=parent,
        )
        folder = checkpoint_folder(self._checkpoints, step)
        publish(self._checkpoints, self._draft, manifest)
        self._retention.add(step, best, trigger)
        event = {
            "event": "saved",
            "path": str(folder),
            "step": step,
            "trigger": trigger,
            "nbytes": sum(file.nbytes for file in files),
            "rows": sum(totals[group.number] for group in layout.feature_groups),
            "parent": parent.step if parent else None,
        }
        return SaveResult(
            event, ParentCheckpoint(Parent(step, manifest_digest(folder)), self._chain.length + 1 if parent else 1)
        )

    def has(self, step: int) -> bool:
        """Return True if the run has a complete checkpoint of the step, saved before the evaluation that was due."""
        try:
            return step in finished_steps(self._checkpoints)
        except CheckpointError:
            return False  # The store does not answer; the save that follows says so.

    def renew(self, step: int, state: Callable[[], RecordState]) -> None:
        """Note in the checkpoint of a step, whose model has been evaluated since, how far the record is now.

        Raises CheckpointError if the checkpoint is damaged, DiskError if it cannot be written.
        """
        folder = checkpoint_folder(self._checkpoints, step)
        manifest = decode_manifest(folder)
        self._renew_record(folder, msgspec.structs.replace(manifest, progress=self._progress(state())))
        self._retention.add(step, self._tracker.kept_at(step), manifest.trigger)
        newest, length = self._chain
        if newest is not None and newest.step == step:
            self._chain = ParentCheckpoint(Parent(step, manifest_digest(folder)), length)

    def complete_record(self) -> None:
        """Renew the copy of the record in the newest checkpoint elsewhere, once the events have the end of the job.

        A store that refuses it, or does not answer for a while, costs no job.
        """
        newest = self._chain.newest
        if newest is None or self._job.task != "train" or self._run.checkpoint.path is None:
            return
        folder = checkpoint_folder(self._checkpoints, newest.step)
        try:
            with within(LAST_COPY_S):
                self._renew_record(folder, decode_manifest(folder))
        except UserError as error:
            log.warning("%s has no copy of the end of the record: %s", folder, error)

    def _renew_record(self, folder: Place, manifest: Manifest) -> None:
        """Give a checkpoint a new copy of the record, then its manifest: it is whole at each moment.

        Raises DiskError, and OvertakenError where another run directory writes now.
        """
        self._require_writer()
        old = {file.folder for file in copies_in(manifest)}
        others = [file for file in manifest.files if file.folder not in old]
        [beginning] = {file.folder.removesuffix(RECORD) for file in others if kind_of(file) == RECORD}
        name = next(name for name in COPIES if f"{beginning}{name}" not in old)
        copies = save_copies(Path(self._job.run_dir), folder, f"{beginning}{name}")
        write_checked(folder / MANIFEST, msgspec.structs.replace(manifest, files=[*others, *copies]))
        for each in old:
            with suppress(OSError, DiskError, CheckpointError):
                remove(folder / each, MANIFEST)

    def _require_writer(self) -> None:
        if self._run.checkpoint.path is not None:
            require_writer(self._checkpoints, Path(self._job.run_dir))

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
            tracked=[_figure(best) for best in self._tracker.tracked],
            plateaus=tuple(TrackedPlateau(p.of, _figure(p.best), p.reductions) for p in self._tracker.plateaus),
            evaluation_due=evaluation_due,
        )


def _figure(best: Best) -> TrackedFigure:
    return TrackedFigure(best.metric, best.step, best.value, best.since)


def restore_tracker(tracker: EvaluationTracker, progress: RunProgress) -> None:
    """Let a tracker go on from what a checkpoint has of the one before."""
    tracker.restore([(each.metric, each.step, each.value, each.since) for each in progress.tracked])
    saved = {each.of: each for each in progress.plateaus}
    for plateau in tracker.plateaus:
        if each := saved.get(plateau.of):
            plateau.restore(each.best.metric, each.best.step, each.best.value, each.best.since, each.reductions)
