"""The coordinator's part in a checkpoint: gather what every replica wrote, and publish it as one."""

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from persia_cli import __version__
from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.phases import Phase, Trigger
from persia_cli.errors import CheckpointError, DiskError
from persia_cli.observe.record_state import RecordState, save_scores
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.job import Job
from persia_cli.storage.places import Place, address_of, place_of
from persia_cli.store.chain import is_divided, manifest_digest, read_chain
from persia_cli.store.manifest import (
    EMBEDDINGS,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    Parent,
    RunProgress,
    SavedTable,
    TrackedFigure,
    begin_checkpoint,
    checkpoint_folder,
    checkpoints_of,
    decode_manifest,
    finished_steps,
    publish,
    write_checked,
)
from persia_cli.store.retention import Retention, remove_unfinished
from persia_cli.wire.figures import SavedFile
from persia_cli.wire.job_messages import SaveModel


class Cut(NamedTuple):
    """What a checkpoint has of the coordinator, as it was when the saving phase began."""

    step: int
    samples: int
    progress: RunProgress
    best: Best | None
    """Given if the checkpoint is the best so far."""
    scores: SavedFile | None
    trigger: Trigger


class Checkpointing:
    """One checkpoint after another, each of the files that the replicas report."""

    def __init__(self, run: Run, job: Job, tracker: EvaluationTracker) -> None:
        self._run, self._job, self._tracker = run, job, tracker
        self._checkpoints = checkpoints_of(Path(job.run_dir), run.checkpoint.path)
        self._draft: Place = self._checkpoints
        self._failures: list[str] = []
        """Why parts of the checkpoint under way could not be written."""
        self._lost: tuple[int, str] | None = None
        """Step of the last save, if it was given up, and why."""
        self._given_up = 0
        self._files: dict[str, Sequence[SavedFile]] = {}
        self._cut: Cut | None = None
        self._retention = Retention(self._checkpoints, run.checkpoint.keep)
        if (best := tracker.kept_at(job.first_step)) and job.first_step in finished_steps(self._checkpoints):
            # A run that was killed after it had published this checkpoint may not have noted that it is the best.
            self._retention.add(job.first_step, best, "best")
        self._parent, self._chain_length = self._loaded_parent()
        self.newest: tuple[str, int] | None = None
        """Address and step of the last checkpoint that this job has published."""

    def _loaded_parent(self) -> tuple[Parent | None, int]:
        """Return the checkpoint that a resumed run goes on from, and the length of its chain.

        There is none for a run in another folder, which must not depend on this one, and for another number of servers.
        """
        folder = checkpoint_folder(self._checkpoints, self._job.first_step)
        if self._job.load is None or address_of(place_of(self._job.load)) != address_of(folder):
            return None, 0
        chain = read_chain(folder)
        if not is_divided(chain.manifest, embedding_layout(self._run), self._run.cluster.embedding_servers):
            return None, 0
        return Parent(chain.manifest.step, manifest_digest(folder)), len(chain.manifests)

    def _parent_step(self) -> int | None:
        """Return the step of the checkpoint whose rows the next one changes; None if that one has all rows."""
        if self._parent is None or self._chain_length >= self._run.checkpoint.full_every:
            return None
        try:
            digest = manifest_digest(checkpoint_folder(self._checkpoints, self._parent.step))
        except CheckpointError:
            return None  # somebody has removed it
        return self._parent.step if digest == self._parent.sha256 else None

    def begin(self, phase: Phase, samples: int, state: RecordState) -> SaveModel:
        """Make the folder that replicas write the checkpoint of a saving phase into; returns what they are to do.

        What the checkpoint has of the coordinator is kept as it is now: training may go on before all is written.
        `state` is that of the run's record, of so many samples. What cannot be written is told by `conclude`.
        """
        step, scores = phase.last, None
        best = self._tracker.kept_at(step)
        self._files, self._failures, self._lost = {}, [], None
        self._draft = begin_checkpoint(self._checkpoints, step)
        try:
            scores = save_scores(self._draft, state.scores)
        except DiskError as error:
            self._failures.append(str(error))
        progress = self._progress(state, phase.evaluation_due)
        self._cut = Cut(step, samples, progress, replace(best) if best else None, scores, phase.trigger)
        # A store that does not answer is not asked again: each time takes long, and replicas wait for this one.
        return SaveModel(address_of(self._draft), step, self._parent_step() if scores is not None else None)

    def add(self, name: str, files: Sequence[SavedFile], failure: str = "") -> None:
        """Note the files that a replica wrote, or why it could not."""
        self._files[name] = files
        if failure:
            self._failures.append(failure)

    def is_underway(self, writing: Set[str]) -> bool:
        """Return whether there will be a checkpoint once the replicas that are still `writing` are done."""
        return bool(writing) and not self._failures

    def conclude(self) -> dict[str, Any]:
        """Publish the checkpoint, or give it up if a part of it could not be written; return the event of either.

        What there is on a disk of a checkpoint that is given up is removed, which makes room: no replica writes it any
        more. In an object store, which may not answer now, it stays until the end of the job.
        """
        assert self._cut is not None
        try:
            if self._failures:
                raise DiskError(self._failures[0])
            return {"event": "saved"} | self.publish()
        except (DiskError, CheckpointError) as error:
            if isinstance(self._checkpoints, Path):
                remove_unfinished(self._checkpoints)
            self._lost = (self._cut.step, str(error))
            self._given_up += 1
            return {"event": "save_failed", "step": self._cut.step, "given_up": self._given_up, "text": str(error)}

    def require_saved(self, step: int) -> None:
        """Raise DiskError if the model of this step, the last one, was to be saved and was not."""
        if self._lost is not None and self._lost[0] == step:
            raise DiskError(f"the model of step {step:,} was not saved: {self._lost[1]}")

    def publish(self) -> dict[str, Any]:
        """Give the checkpoint its manifest and name; return path, size and rows of features.

        Older checkpoints go that are not to be kept. Raises CheckpointError if a file is not where it should be,
        DiskError if one cannot be written.
        """
        assert self._cut is not None
        step, samples, progress, best, scores, trigger = self._cut
        assert scores is not None
        files = [*(file for name in sorted(self._files) for file in self._files[name]), scores]
        layout = embedding_layout(self._run)
        rows = [file.rows for file in files if file.rows is not None and file.folder == EMBEDDINGS]
        totals = {
            group.number: sum(sum(part.all_tables.values()) for part in rows if part.group == group.number)
            for group in layout.groups
        }
        # A server that does not know what has changed writes all rows.
        parent = self._parent if any(part.changed_since is not None for part in rows) else None
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            persia_version=__version__,
            generation=0,
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
        folder = publish(self._checkpoints, self._draft, manifest)
        self._chain_length = self._chain_length + 1 if parent else 1
        self._parent = Parent(step, manifest_digest(folder))
        self.newest = address_of(folder), step
        self._retention.add(step, best, trigger)
        return {
            "path": str(folder),
            "step": step,
            "trigger": trigger,
            "nbytes": sum(file.nbytes for file in files),
            "rows": sum(totals[group.number] for group in layout.feature_groups),
            "parent": parent.step if parent else None,
        }

    def has(self, step: int) -> bool:
        """Return True if the run has a complete checkpoint of the step, saved before the evaluation that was due."""
        try:
            return step in finished_steps(self._checkpoints)
        except CheckpointError:
            return False  # The store does not answer; the save that follows says so.

    def renew(self, step: int, state: RecordState) -> None:
        """Note in the checkpoint of a step, whose model has been evaluated since, how far the record is now.

        Raises CheckpointError if the checkpoint is damaged, DiskError if it cannot be written.
        """
        folder = checkpoint_folder(self._checkpoints, step)
        manifest = decode_manifest(folder)
        write_checked(folder / MANIFEST, msgspec.structs.replace(manifest, progress=self._progress(state)))
        if self._parent is not None and self._parent.step == step:
            self._parent = Parent(step, manifest_digest(folder))
        self._retention.add(step, self._tracker.kept_at(step), manifest.trigger)

    def _progress(self, state: RecordState, evaluation_due: bool = False) -> RunProgress:
        return RunProgress(
            train_rows=self._job.train_rows,
            eval_rows=self._job.eval_rows,
            metrics_bytes=state.metrics_bytes,
            look_ups=state.look_ups,
            unknown=state.unknown,
            hits=state.tables.hits,
            misses=state.tables.misses,
            evicted=state.tables.evicted,
            tracked=[TrackedFigure(best.metric, best.step, best.value, best.since) for best in self._tracker.tracked],
            evaluation_due=evaluation_due,
        )
