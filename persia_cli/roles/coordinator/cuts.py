"""Cuts for the publisher: when one is due, and its folder."""

# Invariants:
#
# - A cut has what changed since the last cut that is complete, or all rows: after a failure, an abandoned cut has taken
#   the names of ids that left.
# - No cut is due while a checkpoint or a cut is written.
# - With a guard, a cut is of a step whose evaluation is within bounds: of the next window with `eval.next`.

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.errors import CheckpointError, DiskError
from persia_cli.metric import keys_of
from persia_cli.roles.coordinator.state import BeginCheckpoint, JobState, PublishCheckpoint
from persia_cli.storage.locations import Location, address_of
from persia_cli.store.checkpoints.cuts import CUTS, MOST_WAITING, WHOLE, cuts_of
from persia_cli.store.checkpoints.manifest import CutFacts, Manifest, begin_checkpoint, publish
from persia_cli.store.checkpoints.retention import remove_unfinished
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.wire.job_messages import SaveModel

LAST_PAUSE_S = 60.0
"""Longest time between cuts that fail; each failure doubles it."""
CUT_EVENTS = ("cut", "cut_failed")


class CutSchedule:
    """The schedule of cuts: when one is due, and since which step; without disks."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._publish = state.run.publish if state.job.task == "train" else None
        self._parent: int | None = None
        """The step of the last cut; None if the next one must have all rows."""
        self._deltas = 0
        """Number of cuts since one with all rows."""
        self._started_s = state.now
        self._pause_s = self._publish.every_s if self._publish else 0.0
        self._good_step: int | None = None
        """The step of the last evaluation, if it is within the bounds of the guard."""

    def is_due(self) -> bool:
        """Return True if a cut is due by the clock; with a guard it is due after an evaluation."""
        return bool(self._publish and not self._publish.guard.is_set and self._has_paused)

    @property
    def _has_paused(self) -> bool:
        return self._state.now - self._started_s >= self._pause_s

    def lacks(self, step: int) -> bool:
        """Return True if the last cut has not what changed up to a step."""
        return step != (self._parent or 0)

    def since(self, step: int) -> int | None:
        """Begin a cut at this step; return since when it has rows, None if there is nothing to cut."""
        assert self._publish is not None
        if self._publish.guard.is_set and step != self._good_step:
            return None
        self._started_s = self._state.now
        if not self.lacks(step):
            return None
        return self._parent or 0 if self._deltas < self._publish.base_every else 0

    def end(self, event: Mapping[str, Any]) -> None:
        """Record that a cut is complete, or has failed."""
        assert self._publish is not None
        if event["event"] == "cut":
            self._parent, self._pause_s = event["step"], self._publish.every_s
            self._deltas = self._deltas + 1 if event["since"] else 0
            self._state.events.write(**event)
        else:
            text = f"the changes up to step {event['step']:,} are not published: {event['text']}; the next version is "
            self._state.events.write(event="warning", text=f"{text}the whole model")
            self._pause_s = min(2 * self._pause_s, max(LAST_PAUSE_S, self._publish.every_s))
            self._parent = None

    def judge(self, line: Mapping[str, Any]) -> None:
        """Request a version of the evaluated model if it is within bounds and one is due; else hold versions back."""
        if self._publish is None or not self._publish.guard.is_set:
            return
        guard, labels = self._publish.guard, list(self._state.run.links)
        bounds = {"ne": (0.0, guard.ne)} if guard.ne is not None else {}
        if (factor := guard.calibration) is not None:
            bounds["calibration"] = (min(factor, 1 / factor), max(factor, 1 / factor))
        bad = [
            f"{key} is {'undefined' if value is None else f'{value:.4g}'}"
            for figure, (least, most) in bounds.items()
            for key in keys_of(figure, labels)
            if key in line and ((value := line[key]) is None or not least <= value <= most)
        ]
        held = f"versions are held back: at step {line['step']:,}, {' and '.join(bad)}" if bad else ""
        if held or self._state.record.is_held:
            text = held or f"versions are published again: the evaluation at step {line['step']:,} is within bounds"
            self._state.events.write(event="warning" if held else "note", text=text)
        self._state.record.is_held, self._good_step = bool(held), None if held else line["step"]
        if not held and self._has_paused:
            self._state.requests.publish = True


class CutFolders:
    """The folders of the cuts of a start of a job, one after the other; all methods wait for disks."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / CUTS / f"{time.time_ns():020d}"
        self._draft: Location = self._folder
        self.beginning: BeginCheckpoint | None = None
        """The task that has begun the present cut; None while there is none."""
        self._facts = CutFacts(0, 0.0)

    def begin(self, task: BeginCheckpoint) -> SaveModel | None:
        """Begin a cut; return None if the publisher is behind, unless it is the last. Errors come with `conclude`."""
        step, since = task.phase.last, task.since
        if since is None or (not task.phase.is_last and len(cuts_of(self._folder)) >= MOST_WAITING):
            return None
        if (whole := self._folder / WHOLE).exists():
            whole.unlink()
            since = 0
        self.beginning, self._facts = task, CutFacts(since, time.time())
        self._draft = begin_checkpoint(self._folder, step)
        return SaveModel(address_of(self._draft), step, awaited=since > 0 or task.phase.is_last, since=since)

    def conclude(self, task: PublishCheckpoint, manifest: Callable[[list[SavedFile]], Manifest]) -> dict[str, Any]:
        """Publish the cut, or remove it if a part could not be written; return the event of that.

        `manifest` returns the manifest of some files.
        """
        self.beginning = None
        try:
            if task.failure:
                raise DiskError(task.failure)
            described = msgspec.structs.replace(manifest(list(task.files)), cut=self._facts)
            folder = publish(self._folder, self._draft, described)
        except (DiskError, CheckpointError) as error:
            remove_unfinished(self._folder)
            return {"event": "cut_failed", "step": task.step, "text": str(error)}
        return {
            "event": "cut",
            "path": str(folder),
            "step": task.step,
            "since": self._facts.since,
            "nbytes": sum(file.nbytes for file in described.files),
            "rows": described.row_count(with_dense=False),
            "seconds": round(time.time() - self._facts.time, 3),
        }
