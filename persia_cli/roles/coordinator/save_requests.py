"""Saves outside the schedule: on a signal or request, before a step that cannot be read, by the clock, and again."""

from typing import Any

from persia_cli.control.phases import Phase, Trigger
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.errors import UserError
from persia_cli.roles.coordinator.state import Ending, JobState, UnreadableStep
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.wire.job_messages import CutShort, Held, Hold, Instruction, SavedNow, SaveNow, Unreadable
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

SAVE_AND_END = ("SIGTERM", "SIGUSR1", "SIGHUP")
"""Signals after which the model is saved and the job ends; it can be resumed."""

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
"""Seconds after which a save that has failed is tried again: the first pause, which doubles up to the last one."""
LAST_SAVE_S = 3600.0
"""Seconds for which the last save of a job is tried again; after a signal, `checkpoint.grace_s` holds instead."""


class SaveRequests:
    """The requests that cut phases short to save: any request cuts training, only the end cuts an evaluation."""

    def __init__(self, state: JobState, work: WorkQueue, saved: str) -> None:
        """`saved` is the place of the checkpoint that has what is trained so far; empty if there is none."""
        self._state, self._work, self._settings = state, work, state.settings
        self._saved_s = state.now
        self._asked: list[Peer] = []
        """The commands that wait for a checkpoint."""
        self._result = saved, "" if saved else "nothing is trained yet"
        """The place of the checkpoint of the last save, and the reason why there is none."""
        self._retry_at: float | None = None
        """The time of the next attempt, if the last save has failed."""
        self._pause_s = FIRST_RETRY_S
        self._unsaved_since: float | None = None
        """The time at which the last save of the job failed first."""

    def tick(self) -> None:
        """Do what has become due."""
        state = self._state
        phase = state.phases.current
        if phase is None:
            self._saved_s = state.now
        elif phase.kind == "training" and self._is_due(state.now):
            self._saved_s, self._retry_at = state.now, None
            if not state.phases.writing:
                self._save("minutes")
        if state.ending and not state.stop_reason and state.now > state.ending.deadline_s:
            state.stop_reason = f"the model was not saved within {self._settings.grace_s:g} s (checkpoint.grace_s)"

    def _is_due(self, now: float) -> bool:
        """Return True if the model should be saved by the clock."""
        if self._retry_at is not None and now >= self._retry_at:
            return True
        return self._settings.save_every_s is not None and now - self._saved_s >= self._settings.save_every_s

    def retry(self, at_once: bool) -> float:
        """Have a save that has failed tried again; return the seconds until then."""
        now = self._state.now
        pause_s = 0.0 if at_once else self._pause_s
        self._retry_at, self._pause_s = now + pause_s, min(2 * self._pause_s, LAST_RETRY_S)
        return pause_s

    def retries_later(self) -> bool:
        """Return True while the last save of a job, which has failed, is not due again."""
        now = self._state.now
        if self._unsaved_since is None:  # earlier saves may have failed for hours
            self._unsaved_since = now
        return self._retry_at is not None and now < self._retry_at

    @property
    def gives_up(self) -> bool:
        """True if the last save of a job has failed for LAST_SAVE_S."""
        return self._unsaved_since is not None and self._state.now - self._unsaved_since > LAST_SAVE_S

    def end(self, signal: str, replica: str) -> None:
        """Save the model and end the job within `checkpoint.grace_s`, as a replica received a signal; once per job."""
        state, phase = self._state, self._state.phases.current
        if state.ending or (phase is not None and phase.kind == "done"):
            return
        if phase is not None and phase.kind == "predicting" and not state.phases.waiting:
            return  # the file of the prediction is being published
        state.ending = Ending(signal, replica, state.now + self._settings.grace_s)
        if phase is None or state.job.task != "train":
            state.stop_reason = "there was nothing to save"
            return
        state.events.write(event="ending", signal=signal, replica=replica, grace_s=self._settings.grace_s)
        state.requests.end = True
        self._cut()
        state.phases.skip()

    def on_unreadable(self, peer: Peer, message: Unreadable) -> None:
        """Allow a step without its unreadable rows, while they are few; otherwise end the job before it.

        No rank has all samples of that step, so it is not trained, and a resumed run begins with it. A training is
        saved first; another job ends at once.
        """
        state = self._state
        member = state.find(message.sender, only="data-loader")
        error = f"{member.name}: {message.error}"
        if message.rows:
            if self._may_leave_out(message.rows, message.error):
                state.reply(peer, Ack())
                return
            error += f"; more rows than dataset.max_bad_rows={self._settings.most_bad_rows} cannot be read"
        if state.job.task != "train":
            state.abort(error, UserError.exit_code)
            return
        before = state.unreadable
        if before is None or (before.split == message.split and message.step < before.step):
            state.unreadable = UnreadableStep(message.split, message.step, error)
        state.requests.end = True
        self._stop_before_unreadable()

    def _may_leave_out(self, rows: tuple[int, ...], why: str) -> bool:
        """Count rows that are left out, each once; return True if all of them are few enough."""
        state, before = self._state, len(self._state.bad_rows)
        state.bad_rows.update(rows)
        total = len(state.bad_rows) + state.job.unread_rows
        if total > self._settings.most_bad_rows:
            return False
        if len(state.bad_rows) > before:
            state.record.bad_rows = total
            state.events.write(event="bad_rows", rows=total, text=why)
        return True

    def _stop_before_unreadable(self) -> bool:
        """Cut the present phase short if an unreadable step is in it; return True if so."""
        state, unreadable = self._state, self._state.unreadable
        if unreadable is None or unreadable.split != self._split:
            return False
        phase = state.phases.stop_before(unreadable.step)
        if phase is not None:
            self._work.change(Instruction(state.phases.number, CutShort(self._split, phase.last)))
        return phase is not None

    def fail_unreadable(self, unreadable: UnreadableStep, step: int) -> None:
        """Fail the job at its end, after `step` steps, for a step that cannot be read; name what is saved."""
        state, text = self._state, unreadable.error
        if saved := self._result[0] or state.job.load:
            text += f"; the model of step {step:,} is in {saved}: persia resume {state.job.run_dir} goes on from there"
        state.abort(text, UserError.exit_code)

    def note_begun(self, phase: Phase) -> None:
        """Apply the pending requests to a phase that has begun."""
        requests = self._state.requests
        if self._asked and phase.kind != "saving" and requests.save is None and not self._state.phases.writing:
            self.answer(*self._result)  # nothing was trained since
        if self._stop_before_unreadable():
            return
        if requests.end or (requests.save and phase.kind == "training"):
            self._cut()  # the phase began while the request was in flight

    def note_saved(self, event: dict[str, Any]) -> None:
        """Answer the waiting commands with the event of a finished save."""
        self._saved_s = self._state.now
        if event["event"] == "saved":
            self._result = str(event["path"]), ""
            self._retry_at, self._pause_s = None, FIRST_RETRY_S
        else:
            self._result = "", f"the checkpoint could not be written: {event['text']}"
        self.answer(*self._result)

    def note_stopped(self, step: int) -> None:
        """Record that the job ends early, after `step` steps, and the signal that ends it, if any."""
        ending, reason = self._state.ending, self._state.stop_reason
        signal = {"signal": ending.signal, "replica": ending.replica} if ending else {}
        why = {"text": reason} if reason else {}
        self._state.events.write(event="phase", phase="stopped", step=step, **signal, **why)

    def on_save_now(self, peer: Peer, message: SaveNow) -> None:
        """Save for a command; answer when the checkpoint exists, or at once if there will be none."""
        phase = self._state.phases.current
        self._asked.append(peer)
        if self._state.stopping:
            self.answer("", "the job ends")
        elif self._state.job.task != "train":
            self.answer("", "this job trains nothing")
        elif phase is None or phase.kind == "done":
            self.answer(*self._result)
        elif phase.kind != "saving" and not self._state.phases.writing:
            self._save("request")

    def answer(self, path: str, why: str = "") -> None:
        """Answer the commands that wait for a checkpoint."""
        for peer in self._asked:
            self._state.reply(peer, SavedNow(path, why))
        self._asked.clear()

    def on_held(self, peer: Peer, message: Held) -> None:
        """Record the first step that a rank has not started; the last answer fixes the common last step."""
        phases = self._state.phases
        member = self._state.find(message.sender, only="nn-worker")
        phase = phases.cut(member.name, message.number, message.step)
        self._state.reply(peer, Ack())
        if phase is not None:
            self._work.change(Instruction(phases.number, CutShort(self._split, phase.last)))

    def _save(self, trigger: Trigger) -> None:
        requests, phase = self._state.requests, self._state.phases.current
        requests.save = requests.save or trigger
        if phase is not None and phase.kind == "training":
            self._cut()

    def _cut(self) -> None:
        phases = self._state.phases
        if phases.hold():
            self._work.change(Instruction(phases.number, Hold(self._split)))

    @property
    def _split(self) -> int:
        phase = self._state.phases.current
        return TRAIN if phase is not None and phase.kind == "training" else EVAL
