"""A checkpoint is saved and published: when a save is due, its course and its retries; files: `checkpoint_folders`."""

# Invariants:
#
# - At most one checkpoint is written at a time. It is published once, and only when every participant has written its
#   part; it fails if one of them could not, or died while it wrote.
# - A save that has failed is tried again. The job does not end without its last save, unless that fails for
#   LAST_SAVE_S, or `checkpoint.grace_s` after a signal has passed.
# - A command that requests a checkpoint is answered once.
# - Any request cuts training short; only the end cuts an evaluation.

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from persia_cli.control.phases import Phase, Trigger
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.errors import DiskFaultError, UserError, WireError
from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.cuts import CUT_EVENTS, CutSchedule
from persia_cli.roles.coordinator.progress import progress_of
from persia_cli.roles.coordinator.state import BeginCheckpoint, Ending, JobState, PublishCheckpoint
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.store.checkpoints.saved import SavedFile, decode_files
from persia_cli.wire.job_messages import (
    CutShort,
    Halt,
    Halted,
    Instruction,
    Saved,
    SavedNow,
    SaveModel,
    SaveNow,
    Unreadable,
)
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

PUBLISHER = f"{COORDINATOR}-0"
"""The last participant of a save: it publishes the files of the others."""
SAVE_AND_END = ("SIGTERM", "SIGUSR1", "SIGHUP")
"""Signals after which the model is saved and the job ends; it can be resumed."""
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
"""Seconds after which a save that has failed is tried again: the first pause, which doubles up to the last one."""
LAST_SAVE_S = 3600.0
"""Seconds for which the last save of a job is tried again; after a signal, `checkpoint.grace_s` holds instead."""


class UnreadableStep(NamedTuple):
    """The first step of a split whose samples cannot be read, and a sentence on the reason."""

    split: int
    step: int
    error: str


class Saves:
    """The saves of a job, one after the other, and the requests for them."""

    def __init__(self, state: JobState, work: WorkQueue) -> None:
        self._state, self._work, self._limits = state, work, state.run.checkpoint
        self._is_cut = False
        """True if the last save was a cut for the publisher."""
        self._is_writing = False
        """True once the folder is ready and replicas get the instruction to write."""
        self._files: dict[str, Sequence[SavedFile]] = {}
        self._failure = ""
        """The reason why a part of the present checkpoint could not be written, or empty."""
        self._is_disturbed = False
        """True if a replica died while it wrote files of the last save."""
        self._lost: tuple[int, str] | None = None
        """The step of the last save and its error, if it failed."""
        saved = state.origin.saved
        self._last = SavedNow(saved, "" if saved else "nothing is trained yet")
        """The place of the checkpoint of the last save, or the reason why there is none."""
        self._saved_step = state.step if saved else None
        """The step of the last checkpoint."""
        self._commands: list[Peer] = []
        """The commands that wait for a checkpoint."""
        self._saved_s = state.now
        self._retry_at: float | None = None
        """The time of the next attempt, if the last save has failed."""
        self._pause_s = FIRST_RETRY_S
        self._unsaved_since: float | None = None
        """The time at which the last save of the job failed first."""
        self._bad_rows: set[int] = set()
        """The numbers of rows that are left out since a value cannot be used."""
        self.cuts = CutSchedule(state)
        self._unreadable: UnreadableStep | None = None
        """The step before which the model is saved and the job fails."""

    # A save is due: by the clock, on request, on a signal, before a step that cannot be read

    def tick(self) -> None:
        """Request a save that is due by the clock; end the job if the time after a signal has passed."""
        state = self._state
        phase = state.phases.current
        if phase is None:
            self._saved_s = state.now
        elif phase.kind in ("training", "idle") and self._is_due(state.now) and not self._is_cut_open:
            self._saved_s, self._retry_at = state.now, None
            if not state.phases.writing:
                self._request("minutes")
        elif self.cuts.is_due() and not state.phases.writing:
            if phase.kind == "training":
                state.requests.publish = True
                self._cut()
            elif phase.kind == "idle" and self.cuts.lacks(phase.last):
                # The publisher was behind when the job became idle.
                state.requests.publish = True
                state.phases.wake()
        if state.ending and not state.stop_reason and state.now > state.ending.deadline_s:
            state.stop_reason = f"the model was not saved within {self._limits.grace_s:g} s (checkpoint.grace_s)"

    @property
    def _is_cut_open(self) -> bool:
        """True while a cut for the publisher is written, which is no checkpoint: one may be due after it."""
        return self._is_cut and bool(self._state.phases.writing)

    def _is_due(self, now: float) -> bool:
        if self._retry_at is not None and now >= self._retry_at:
            return True
        minutes = self._limits.every_minutes
        return minutes is not None and now - self._saved_s >= 60.0 * minutes

    def on_save_now(self, peer: Peer, message: SaveNow) -> None:
        """Save for a command; answer when the checkpoint exists, or at once if there will be none."""
        phase = self._state.phases.current
        self._commands.append(peer)
        if self._state.stopping:
            self.answer(SavedNow("", "the job ends"))
        elif self._state.job.task != "train":
            self.answer(SavedNow("", "this job trains nothing"))
        elif phase is None or phase.kind == "done":
            self.answer(self._last)
        elif self._is_cut_open or (phase.kind != "saving" and not self._state.phases.writing):
            self._request("request")

    def answer(self, answer: SavedNow) -> None:
        """Answer the commands that wait for a checkpoint."""
        for peer in self._commands:
            self._state.reply(peer, answer)
        self._commands.clear()

    def end(self, signal: str, replica: str) -> None:
        """Save the model and end the job within `checkpoint.grace_s`, as a replica received a signal; once per job."""
        state, phase = self._state, self._state.phases.current
        if state.ending or (phase is not None and phase.kind == "done"):
            return
        if phase is not None and phase.kind == "predicting" and not state.phases.waiting:
            return  # the file of the prediction is being published
        state.ending = Ending(signal, replica, state.now + self._limits.grace_s)
        if phase is None or state.job.task != "train":
            state.stop_reason = "there was nothing to save"
            return
        state.events.write(event="ending", signal=signal, replica=replica, grace_s=self._limits.grace_s)
        state.requests.end = True
        self._cut()
        state.phases.wake()

    def on_unreadable(self, peer: Peer, message: Unreadable) -> None:
        """Allow a step without its unreadable rows, while they are few; otherwise end the job before it.

        No rank has all samples of that step, so it is not trained, and a resumed run begins with it. A training is
        saved first; another job ends at once.
        """
        state = self._state
        member = state.find(message.sender, only="data-loader")
        error = f"{member.name}: {message.error}"
        if message.rows:
            most = getattr(state.run.dataset, "max_bad_rows", 0)
            if self._may_leave_out(message.rows, most, message.error):
                state.reply(peer, Ack())
                return
            error += f"; more rows than dataset.max_bad_rows={most} cannot be read"
        if state.job.task != "train":
            state.abort(error, UserError.exit_code)
            return
        before = self._unreadable
        if before is None or (before.split == message.split and message.step < before.step):
            self.end_before(message.split, message.step, error)

    def end_before(self, split: int, step: int, error: str) -> None:
        """End a training before a step, save the model, and fail with this error of the user's."""
        self._unreadable = UnreadableStep(split, step, error)
        self._state.requests.end = True
        self._stop_before_unreadable()
        self._state.phases.wake()

    def _may_leave_out(self, rows: tuple[int, ...], most: int, why: str) -> bool:
        """Count rows that are left out, each once; return True if all of them are at most so many."""
        state, before = self._state, len(self._bad_rows)
        self._bad_rows.update(rows)
        total = len(self._bad_rows) + state.job.unread_rows
        if total > most:
            return False
        if len(self._bad_rows) > before:
            state.record.bad_rows = total
            state.events.write(event="bad_rows", rows=total, text=why)
        return True

    # The present phase is cut short

    def on_phase(self, phase: Phase) -> None:
        """Apply the pending requests to a phase that has begun."""
        requests = self._state.requests
        if phase.kind != "saving" and requests.save is None and (self._is_cut_open or not self._state.phases.writing):
            self.answer(self._last)  # nothing was trained since
        if not self._stop_before_unreadable() and (
            requests.end or (phase.kind == "training" and (requests.save or requests.publish))
        ):
            self._cut()  # the phase began while the request was in flight

    def on_halted(self, peer: Peer, message: Halted) -> None:
        """Record the first step that a rank has not started; the last answer fixes the common last step."""
        phases = self._state.phases
        member = self._state.find(message.sender, only="nn-worker")
        phase = phases.cut(member.name, message.number, message.step)
        self._state.reply(peer, Ack())
        self._change_last(phase)

    def _request(self, trigger: Trigger) -> None:
        requests, phase = self._state.requests, self._state.phases.current
        requests.save = requests.save or trigger
        if phase is not None and phase.kind == "training":
            self._cut()
        self._state.phases.wake()

    def _cut(self) -> None:
        phases = self._state.phases
        if phases.begin_agreement():
            self._work.change(Instruction(phases.number, Halt(self._split)))

    def _stop_before_unreadable(self) -> bool:
        """Cut the present phase short if an unreadable step is in it; return True if so."""
        if self._unreadable is None or self._unreadable.split != self._split:
            return False
        return self._change_last(self._state.phases.stop_before(self._unreadable.step))

    def _change_last(self, phase: Phase | None) -> bool:
        """Pass the new last step of a phase, if there is one, to the replicas; return whether there is."""
        if phase is not None:
            self._work.change(Instruction(self._state.phases.number, CutShort(self._split, phase.last)))
        return phase is not None

    @property
    def _split(self) -> int:
        phase = self._state.phases.current
        return TRAIN if phase is not None and phase.kind == "training" else EVAL

    # The course of a save

    def begin(self, phase: Phase) -> None:
        """Begin a saving phase."""
        state, record = self._state, self._state.record.state()
        state.phases.writing.add(PUBLISHER)
        self._is_writing, self._files, self._failure, self._is_disturbed = False, {}, "", False
        self._is_cut = phase.trigger == "publish"
        if not self._is_cut:
            self._lost = None
        # Training may continue before all is written, so the coordinator's part of the checkpoint is fixed here.
        progress = progress_of(state.job, record, state.tracker, phase.evaluation_due)
        best = state.tracker.best_at(phase.last)
        best = replace(best) if best else None
        since = self.cuts.since(phase.last) if phase.trigger == "publish" else None
        state.start(BeginCheckpoint(phase, state.grid.samples_before(phase.last), record, progress, best, since))

    def on_begun(self, result: SaveModel | dict[str, Any] | None) -> SaveModel | None:
        """Return the instruction for the replicas; None if the model is saved already."""
        self._is_writing = True
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
        self._add_part(message.step, member.name, files, message.failure)

    def on_death(self, name: str, how: str) -> None:
        """Abort the checkpoint if a dead replica was writing files of it.

        A replica that dies before it gets the instruction to save does not disturb: its new process gets it.
        """
        phases = self._state.phases
        if name in phases.writing:
            self._is_disturbed = True
        if phases.current is not None and not (phases.current.kind == "saving" and name in phases.waiting):
            self._add_part(phases.saved_step, name, (), f"{name} {how} while it wrote its rows")

    def _add_part(self, step: int, name: str, files: Sequence[SavedFile], failure: str) -> None:
        phases = self._state.phases
        if self._state.stopping or not self._is_writing or not phases.finish_writing(name, step):
            return
        self._files[name] = files
        self._failure = self._failure or failure
        if phases.writing == {PUBLISHER}:
            written = [file for name in sorted(self._files) for file in self._files[name]]
            self._state.start(PublishCheckpoint(step, tuple(written), self._failure))

    def on_published(self, events: Sequence[dict[str, Any]]) -> None:
        """Record that a checkpoint is complete, or aborted."""
        for event in events:
            self._state.phases.finish_writing(PUBLISHER, event["step"])
            self._record_end(event)

    def _record_end(self, event: dict[str, Any]) -> None:
        """Record the end of a save, and answer the commands; try one that has failed again, after a death at once."""
        state, step = self._state, event["step"]
        if event["event"] in CUT_EVENTS:
            self.cuts.end(event)
            return
        self._saved_s = state.now
        if event["event"] == "saved":
            self._last, self._saved_step = SavedNow(str(event["path"])), step
            self._retry_at, self._pause_s = None, FIRST_RETRY_S
        else:
            pause_s = 0.0 if self._is_disturbed else self._pause_s
            self._lost = step, event["text"]
            self._retry_at, self._pause_s = state.now + pause_s, min(2 * self._pause_s, LAST_RETRY_S)
            event = event | {"retry_s": pause_s}
            if step != self._saved_step:
                self._last = SavedNow("", f"the checkpoint could not be written: {event['text']}")
        state.events.write(**event)
        self.answer(self._last)

    # The last save

    @property
    def _is_unsaved(self) -> bool:
        """True if the end comes next and the last save has failed; ask only between phases."""
        step = self._state.step
        return self._state.phases.is_last_save(step) and self._lost is not None and self._lost[0] == step

    def waits_to_retry(self) -> bool:
        """Return True until the last save of the job, which has failed, is tried again; ask only between phases."""
        now = self._state.now
        if not self._is_unsaved:
            return False
        if self._unsaved_since is None:  # earlier saves may have failed for hours
            self._unsaved_since = now
        if self._retry_at is None or now >= self._retry_at:
            return False
        self._state.stall.restart(now)
        return True

    @property
    def repeats_last(self) -> bool:
        """True if the last save of the job has failed, and is to be tried again now; ask only between phases."""
        since = self._unsaved_since
        return self._is_unsaved and not (since is not None and self._state.now - since > LAST_SAVE_S)

    def may_end(self) -> bool:
        """Return True if the job may end as planned; fail it if it is unsaved, or a step could not be read."""
        state = self._state
        if self._lost is not None and self._lost[0] == state.step:
            text = f"the model of step {state.step:,} was not saved"
            if state.step == self._saved_step:
                text = f"the checkpoint of step {state.step:,} is saved, but not its evaluation"
            state.abort(f"{text}: {self._lost[1]}", DiskFaultError.exit_code)
            return False
        if self._unreadable is None:
            return True
        text = self._unreadable.error
        if saved := self._last.path or state.job.load:
            text += f"; the model of step {state.step:,} is in {saved}: "
            text += f"persia resume {state.job.run_dir} goes on from there"
        state.abort(text, UserError.exit_code)
        return False
