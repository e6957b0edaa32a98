"""Saves outside the schedule: on a signal or request, before a step that cannot be read, by the clock, and again."""

from collections import deque
from typing import Any

from persia_cli.control.phases import Phase, Trigger
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.errors import UserError
from persia_cli.roles.coordinator.context import Ending, JobContext, UnreadableStep
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

    def __init__(self, context: JobContext, saved: str) -> None:
        """`saved` is the place of the checkpoint that has what is trained so far; empty if there is none."""
        self._context = context
        checkpoint = context.run.checkpoint
        self._grace_s = checkpoint.grace_s
        self._most_bad_rows: int = getattr(context.run.dataset, "max_bad_rows", 0)
        self._every_s = 60.0 * checkpoint.every_minutes if checkpoint.every_minutes else None
        self._saved_s = context.now()
        self._asked: list[Peer] = []
        """The commands that wait for a checkpoint."""
        self._result = saved, "" if saved else "nothing is trained yet"
        """The place of the checkpoint of the last save, and the reason why there is none."""
        self._retry_at: float | None = None
        """The time of the next attempt, if the last save has failed."""
        self._pause_s = FIRST_RETRY_S
        self._unsaved_since: float | None = None
        """The time at which the last save of the job failed first."""
        self.signals: deque[str] = deque()
        """Names of signals that this process received; any thread and a signal handler may append one."""

    def tick(self) -> None:
        """Do what has become due; called a few times a second."""
        context = self._context
        while self.signals:
            if (name := self.signals.popleft()) in SAVE_AND_END:
                self.end(name, "coordinator-0")
        phase = context.phases.current
        if phase is None:
            self._saved_s = context.now()
        elif phase.kind == "training" and self._is_due(context.now()):
            self._saved_s, self._retry_at = context.now(), None
            if not context.phases.writing:
                self._save("minutes")
        if context.ending and not context.stop_reason and context.now() > context.ending.deadline_s:
            context.stop_reason = f"the model was not saved within {self._grace_s:g} s (checkpoint.grace_s)"

    def _is_due(self, now: float) -> bool:
        """Return True if the model should be saved by the clock."""
        if self._retry_at is not None and now >= self._retry_at:
            return True
        return self._every_s is not None and now - self._saved_s >= self._every_s

    def retry(self, at_once: bool) -> float:
        """Have a save that has failed tried again; return the seconds until then."""
        now = self._context.now()
        pause_s = 0.0 if at_once else self._pause_s
        self._retry_at, self._pause_s = now + pause_s, min(2 * self._pause_s, LAST_RETRY_S)
        return pause_s

    def retries_later(self) -> bool:
        """Return True while the last save of a job, which has failed, is not due again."""
        now = self._context.now()
        if self._unsaved_since is None:  # earlier saves may have failed for hours
            self._unsaved_since = now
        return self._retry_at is not None and now < self._retry_at

    @property
    def gives_up(self) -> bool:
        """True if the last save of a job has failed for LAST_SAVE_S."""
        return self._unsaved_since is not None and self._context.now() - self._unsaved_since > LAST_SAVE_S

    def end(self, signal: str, replica: str) -> None:
        """Save the model and end the job within `checkpoint.grace_s`, as a replica received a signal; once per job."""
        context, phase = self._context, self._context.phases.current
        if context.ending or (phase is not None and phase.kind == "done"):
            return
        if phase is not None and phase.kind == "predicting" and not context.phases.waiting:
            return  # the file of the prediction is being published
        context.ending = Ending(signal, replica, context.now() + self._grace_s)
        if phase is None or context.job.task != "train":
            context.stop_reason = "there was nothing to save"
            return
        context.events.write(event="ending", signal=signal, replica=replica, grace_s=self._grace_s)
        context.requests.end = True
        self._cut()
        context.phases.skip()

    def on_unreadable(self, peer: Peer, message: Unreadable) -> None:
        """Allow a step without its unreadable rows, while they are few; otherwise end the job before it.

        No rank has all samples of that step, so it is not trained, and a resumed run begins with it. A training is
        saved first; another job ends at once.
        """
        context = self._context
        member = context.find(message.sender, only="data-loader")
        error = f"{member.name}: {message.error}"
        if message.rows:
            if self._may_leave_out(message.rows, message.error):
                context.reply(peer, Ack())
                return
            error += f"; more rows than dataset.max_bad_rows={self._most_bad_rows} cannot be read"
        if context.job.task != "train":
            context.abort(error, UserError.exit_code)
            return
        before = context.unreadable
        if before is None or (before.split == message.split and message.step < before.step):
            context.unreadable = UnreadableStep(message.split, message.step, error)
        context.requests.end = True
        self._stop_before_unreadable()

    def _may_leave_out(self, rows: tuple[int, ...], why: str) -> bool:
        """Count rows that are left out, each once; return True if all of them are few enough."""
        context, before = self._context, len(self._context.bad_rows)
        context.bad_rows.update(rows)
        total = len(context.bad_rows) + context.job.unread_rows
        if total > self._most_bad_rows:
            return False
        if len(context.bad_rows) > before:
            context.record.bad_rows = total
            context.events.write(event="bad_rows", rows=total, text=why)
        return True

    def _stop_before_unreadable(self) -> bool:
        """Cut the present phase short if an unreadable step is in it; return True if so."""
        context, unreadable = self._context, self._context.unreadable
        if unreadable is None or unreadable.split != self._split:
            return False
        phase = context.phases.stop_before(unreadable.step)
        if phase is not None:
            context.work.change(Instruction(context.phases.number, CutShort(self._split, phase.last)))
        return phase is not None

    def fail_unreadable(self, unreadable: UnreadableStep, step: int) -> None:
        """Fail the job at its end, after `step` steps, for a step that cannot be read; name what is saved."""
        context, text = self._context, unreadable.error
        if saved := self._result[0] or context.job.load:
            text += (
                f"; the model of step {step:,} is in {saved}: persia resume {context.job.run_dir} goes on from there"
            )
        context.abort(text, UserError.exit_code)

    def note_begun(self, phase: Phase) -> None:
        """Apply the pending requests to a phase that has begun."""
        requests = self._context.requests
        if self._asked and phase.kind != "saving" and requests.save is None and not self._context.phases.writing:
            self.answer(*self._result)  # nothing was trained since
        if self._stop_before_unreadable():
            return
        if requests.end or (requests.save and phase.kind == "training"):
            self._cut()  # the phase began while the request was in flight

    def note_saved(self, event: dict[str, Any]) -> None:
        """Answer the waiting commands with the event of a finished save."""
        self._saved_s = self._context.now()
        if event["event"] == "saved":
            self._result = str(event["path"]), ""
            self._retry_at, self._pause_s = None, FIRST_RETRY_S
        else:
            self._result = "", f"the checkpoint could not be written: {event['text']}"
        self.answer(*self._result)

    def note_stopped(self, step: int) -> None:
        """Record that the job ends early, after `step` steps, and the signal that ends it, if any."""
        ending, reason = self._context.ending, self._context.stop_reason
        signal = {"signal": ending.signal, "replica": ending.replica} if ending else {}
        why = {"text": reason} if reason else {}
        self._context.events.write(event="phase", phase="stopped", step=step, **signal, **why)

    def on_save_now(self, peer: Peer, message: SaveNow) -> None:
        """Save for a command; answer when the checkpoint exists, or at once if there will be none."""
        phase = self._context.phases.current
        self._asked.append(peer)
        if self._context.job.task != "train":
            self.answer("", "this job trains nothing")
        elif phase is None or phase.kind == "done":
            self.answer(*self._result)
        elif phase.kind != "saving" and not self._context.phases.writing:
            self._save("request")

    def answer(self, path: str, why: str = "") -> None:
        """Answer the commands that wait for a checkpoint."""
        for peer in self._asked:
            self._context.reply(peer, SavedNow(path, why))
        self._asked.clear()

    def on_held(self, peer: Peer, message: Held) -> None:
        """Record the first step that a rank has not started; the last answer fixes the common last step."""
        phases = self._context.phases
        member = self._context.find(message.sender, only="nn-worker")
        phase = phases.cut(member.name, message.number, message.step)
        self._context.reply(peer, Ack())
        if phase is not None:
            self._context.work.change(Instruction(phases.number, CutShort(self._split, phase.last)))

    def _save(self, trigger: Trigger) -> None:
        requests, phase = self._context.requests, self._context.phases.current
        requests.save = requests.save or trigger
        if phase is not None and phase.kind == "training":
            self._cut()

    def _cut(self) -> None:
        phases = self._context.phases
        if phases.hold():
            self._context.work.change(Instruction(phases.number, Hold(self._split)))

    @property
    def _split(self) -> int:
        phase = self._context.phases.current
        return TRAIN if phase is not None and phase.kind == "training" else EVAL
