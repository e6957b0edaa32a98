"""The coordinator's part in phases: it begins the next one once the one before is over, and knows the model's step."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from persia_cli.control.membership import Member, StallDetector
from persia_cli.control.phases import Phase, PhaseKind, PhaseMachine
from persia_cli.control.position import StepGrid
from persia_cli.observe.journal import Journal
from persia_cli.observe.record import RunRecord
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.checkpointing import Checkpointing
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.wire.figures import Counters
from persia_cli.wire.job_messages import (
    Done,
    EvaluateSteps,
    HurrySave,
    Instruction,
    Pause,
    PhaseWork,
    PredictSteps,
    Stop,
    TrainSteps,
)
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server

if TYPE_CHECKING:
    from persia_cli.roles.coordinator.scoring import Scoring


class Progression:
    """Walks through the phases of a job; `step` is the last of the phases of training that are over."""

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        job: Job,
        phases: PhaseMachine,
        grid: StepGrid,
        step: int,
        record: RunRecord,
        events: Journal,
        checkpointing: Checkpointing,
        reporting: Reporting,
        work: WorkQueue,
        early: SaveRequests,
        dismissal: Shutdown,
        stall: StallDetector,
        scoring: "Scoring | None",
        has_failed: Callable[[], bool],
        note_figures: Callable[[Member, Counters], None],
    ) -> None:
        """`grid` is that of training, which begins at `step`; `has_failed` says whether the job was given up.

        `note_figures` is called with what a replica that ends has counted.
        """
        self._server, self._joining, self._job, self._phases, self._grid = server, joining, job, phases, grid
        self._record, self._events, self._checkpointing, self._reporting = record, events, checkpointing, reporting
        self._work, self._early, self._dismissal, self._stall = work, early, dismissal, stall
        self._scoring, self._has_failed, self._note_figures = scoring, has_failed, note_figures
        self.step = step
        self.over = False
        """True once all is done."""

    @property
    def steps_trained(self) -> int:
        """The last step that is known to be trained."""
        return max(self.step, self._record.step)

    def advance(self) -> None:
        """Begin the next phase, unless it must wait until the last checkpoint is complete, which then has to hurry."""
        if self._phases.held:
            if self._phases.hurry():
                self._work.change(Instruction(self._phases.number, HurrySave(self._phases.saved_step)))
            return
        if self._phases.current is None:
            self._checkpointing.tidy()
        if self._phases.is_last_save(self.step) and self._checkpointing.repeat(self.step):
            self._phases.save_again()
        phase = self._phases.advance()
        if phase.kind == "saving" and self._checkpointing.has(phase.last):
            # The model is the one that is there; what is new is that it has been evaluated.
            self._checkpointing.renew(phase.last, self._record.state)
            self._phases.writing.clear()
            phase = self._phases.advance()
        if phase.kind == "done":
            self._checkpointing.require_saved(self.step)
        if phase.kind == "done" and phase.is_cut:
            self._early.note_stopped(self.steps_trained)
        else:
            self._events.write(event="phase", phase=phase.kind, step=self.step)
        begin: dict[PhaseKind, Callable[[Phase], PhaseWork]] = {
            "training": lambda phase: TrainSteps(phase.first, phase.last, *phase.reductions),
            "evaluating": self._begin_evaluating,
            "predicting": self._begin_predicting,
            "saving": lambda phase: self._checkpointing.begin(
                phase, self._grid.samples_before(phase.last), self._record.state
            ),
            "paused": lambda phase: Pause(phase.last),
            "done": lambda phase: Stop(goes_on=phase.is_cut),
        }
        work = begin[phase.kind](phase)
        self._stall.restart(self._dismissal.clock())
        self._work.instruct(Instruction(self._phases.number, work))
        self._early.note_begun(phase)

    def _begin_evaluating(self, phase: Phase) -> EvaluateSteps:
        self._reporting.begin_scoring()
        self._work.evaluate(phase.first, phase.last)
        return EvaluateSteps(phase.first, phase.last)

    def _begin_predicting(self, phase: Phase) -> PredictSteps:
        self._begin_evaluating(phase)
        return PredictSteps(phase.first, phase.last)

    def on_done(self, peer: Peer, message: Done) -> None:
        """A replica has done what it was told; the last one of those that take part ends the phase."""
        member = self._joining.find(message.sender)
        if message.figures is not None:
            self._record.note(member.name, message.figures, member.incarnation)
            self._note_figures(member, message.figures.counters)
        self._server.reply(peer, Ack())
        if self._dismissal.begun:
            self._dismissal.note_told(member.name)
            return
        phase = self._phases.current
        if phase is None or not self._phases.finish(member.name, message.number):
            return
        if phase.kind == "done":
            self.over = True
            return
        if phase.kind == "training":
            self.step = phase.last
        elif phase.kind == "predicting":
            assert self._scoring is not None
            self._events.write(event="scored", **self._scoring.publish())
        if not self._has_failed():
            self.advance()

    def go_on(self) -> None:
        """Welcome who waited for a checkpoint, and begin the next phase if that waited for its files."""
        self._joining.welcome()
        if not self._phases.waiting and not self._has_failed():
            self.advance()

    def finish_without(self, name: str) -> None:
        """Wait no longer for a replica that is silent, now that all is done."""
        self.over |= self._phases.finish(name, self._phases.number)
