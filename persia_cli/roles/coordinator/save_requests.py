"""The coordinator's part in saves that nobody planned: on a signal, on request, and by the clock."""

from collections import deque
from collections.abc import Callable
from typing import Any

from persia_cli.config.schema import Run
from persia_cli.control.phases import PendingRequests, Phase, PhaseMachine, Trigger
from persia_cli.control.position import EVAL, TRAIN
from persia_cli.observe.journal import Journal
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.wire.job_messages import CutShort, Held, Hold, Instruction, SavedNow, SaveNow
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server

SAVE_AND_END = ("SIGTERM", "SIGUSR1", "SIGHUP")
"""Signals after which the model is saved and the job ends, to go on later."""


class SaveRequests:
    """Cuts phases short, so that the model can be saved: training for any wish, an evaluation only to end the job.

    `wishes` is what the schedule looks at.
    """

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        run: Run,
        job: Job,
        phases: PhaseMachine,
        wishes: PendingRequests,
        work: WorkQueue,
        events: Journal,
        clock: Callable[[], float],
        advance: Callable[[], None],
    ) -> None:
        """`clock` returns the seconds in which the coordinator was running; `advance` begins the next phase."""
        self._server, self._joining, self._work, self._events = server, joining, work, events
        self._job, self._phases, self._wishes = job, phases, wishes
        self._clock, self._advance = clock, advance
        self._grace_s = run.checkpoint.grace_s
        self._every_s = 60.0 * run.checkpoint.every_minutes if run.checkpoint.every_minutes else None
        self._saved_s = clock()
        self._asked: list[Peer] = []
        """The commands that have asked for a checkpoint."""
        self.signals: deque[str] = deque()
        """Names of signals that came to this process; any thread and a signal handler may append one."""
        self.signal = self.replica = ""
        """The signal that ends the job, if one does, and the replica that got it."""
        self.reason: str | None = None
        """Why the job ends now, though its model may not be saved."""
        self._deadline_s = 0.0

    def tick(self) -> None:
        """Do what has become due; called a few times a second."""
        while self.signals:
            self._on_signal(self.signals.popleft())
        phase = self._phases.current
        if phase is None:
            self._saved_s = self._clock()
        elif phase.kind == "training" and self._every_s and self._clock() - self._saved_s >= self._every_s:
            self._on_time()
        if self.signal and not self.reason and self._clock() > self._deadline_s:
            self.reason = f"the model was not saved within {self._grace_s:g} s (checkpoint.grace_s)"

    def _on_signal(self, name: str) -> None:
        """A signal came to this process."""
        if name in SAVE_AND_END:
            self.end(name, "coordinator-0")

    def _on_time(self) -> None:
        """It is time for the next checkpoint."""
        self._saved_s = self._clock()
        if not self._phases.writing:
            self._save("minutes")

    def end(self, signal: str, replica: str) -> None:
        """A replica got a signal: save the model and end the job, within `checkpoint.grace_s`; repeats are nothing."""
        phase = self._phases.current
        if self.signal or (phase is not None and phase.kind == "done"):
            return
        self.signal, self.replica = signal, replica
        self._deadline_s = self._clock() + self._grace_s
        if phase is None or self._job.task != "train":
            self.reason = "there was nothing to save"
            return
        self._events.write(event="ending", signal=signal, replica=replica, grace_s=self._grace_s)
        self._wishes.end = True
        self._cut()
        if phase.kind == "paused":
            self._phases.skip()
            self._advance()

    def note_begun(self, phase: Phase) -> None:
        """Take note of a phase that has begun; answers commands that asked for a checkpoint that there is."""
        if self._asked and phase.kind != "saving" and self._wishes.save is None and not self._phases.writing:
            self.answer("", "nothing was trained since the last checkpoint, or nothing at all yet")
        if self._wishes.end or (self._wishes.save and phase.kind == "training"):
            self._cut()  # It was on its way when the wish came.

    def note_saved(self, event: dict[str, Any]) -> None:
        """Take note of the event with which a save ends, and answer the commands that have asked for it."""
        self._saved_s = self._clock()
        if event["event"] == "saved":
            self.answer(str(event["path"]))
        else:
            self.answer("", f"the checkpoint could not be written: {event['text']}")

    def note_stopped(self, step: int) -> None:
        """Record that the job ends before its time, after `step` steps, and the signal that ends it, if one does."""
        signal = {"signal": self.signal, "replica": self.replica} if self.signal else {}
        why = {"text": self.reason} if self.reason else {}
        self._events.write(event="phase", phase="stopped", step=step, **signal, **why)

    def on_save_now(self, peer: Peer, message: SaveNow) -> None:
        """A command asks for a checkpoint; it is answered once there is one, or at once where there will be none."""
        phase = self._phases.current
        self._asked.append(peer)
        if self._job.task != "train":
            self.answer("", "this job trains nothing")
        elif phase is None:
            self.answer("", "training has not begun yet")
        elif phase.kind == "done":
            self.answer("", "all is done")
        elif phase.kind != "saving" and not self._phases.writing:
            self._save("request")

    def answer(self, path: str, why: str = "") -> None:
        """Answer the commands that have asked for a checkpoint."""
        for peer in self._asked:
            self._server.reply(peer, SavedNow(path, why))
        self._asked.clear()

    def _save(self, trigger: Trigger) -> None:
        self._wishes.save = self._wishes.save or trigger
        if self._phases.current is not None and self._phases.current.kind == "training":
            self._cut()

    def _cut(self) -> None:
        if self._phases.hold():
            self._work.change(Instruction(self._phases.number, Hold(self._split)))

    def on_held(self, peer: Peer, message: Held) -> None:
        """A rank has not started this step yet; once all have said so, they end the phase at the same one."""
        member = self._joining.find(message.sender, only="nn-worker")
        phase = self._phases.cut(member.name, message.number, message.step)
        self._server.reply(peer, Ack())
        if phase is not None:
            self._work.change(Instruction(self._phases.number, CutShort(self._split, phase.last)))

    @property
    def _split(self) -> int:
        phase = self._phases.current
        return TRAIN if phase is not None and phase.kind == "training" else EVAL
