"""The phases of a job: the next one begins when the present one is done."""

from functools import partial
from typing import TYPE_CHECKING

from persia_cli.control.phases import Phase
from persia_cli.control.position import StepGrid
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.wire.job_messages import (
    Done,
    EvaluateSteps,
    Instruction,
    Pause,
    PhaseWork,
    PredictSteps,
    SaveModel,
    Stop,
    TrainSteps,
)
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

if TYPE_CHECKING:
    from persia_cli.roles.coordinator.scoring import Scoring


class Progression:
    """The phases of a job in order; `step` is the last step of the completed training phases."""

    def __init__(
        self,
        context: JobContext,
        grid: StepGrid,
        step: int,
        saving: Saving,
        save_requests: SaveRequests,
        reporting: Reporting,
        replacements: Replacements,
        scoring: "Scoring | None",
    ) -> None:
        """`grid` is the training grid, which begins at `step`; `scoring` is given in a prediction."""
        self._context, self._grid, self.step = context, grid, step
        self._saving, self._save_requests, self._reporting = saving, save_requests, reporting
        self._replacements, self._scoring = replacements, scoring
        self._ended: Phase | None = None
        """The last phase whose end has been handled."""
        self._publishing = False
        """True while the file of a prediction is published."""

    @property
    def steps_trained(self) -> int:
        """The last step that is certainly trained."""
        return max(self.step, self._context.record.step)

    def on_done(self, peer: Peer, message: Done) -> None:
        """Record that a replica has carried out an instruction."""
        context = self._context
        member = context.find(message.sender)
        if message.figures is not None:
            context.record.note(member.name, message.figures, member.incarnation)
            self._replacements.note_counters(member, message.figures.counters)
        context.reply(peer, Ack())
        if context.stopping:
            context.informed.add(member.name)
        else:
            context.phases.finish(member.name, message.number)

    def tick(self) -> None:
        """Begin the next phase if the present one is done; called after every round of messages."""
        while self._is_between_phases() and not self._context.phases.held and not self._waits_to_save():
            self._advance()
        if (phase := self._context.phases.current) is not None:
            self._reporting.report_progress(phase)

    def _is_between_phases(self) -> bool:
        """Return True if the next phase may begin; handle the end of the present one, once."""
        context, phase = self._context, self._context.phases.current
        if context.is_over or context.is_ending:
            return False
        if phase is None:
            return context.begun
        if context.phases.waiting:
            return False
        # The end is handled once, though this is called again while scores are being published.
        if phase is not self._ended:
            self._ended = phase
            self._end(phase)
        return not context.is_over and not self._publishing

    @property
    def _is_unsaved(self) -> bool:
        """True if the end comes next and the last save has failed; ask only between phases."""
        return self._context.phases.is_last_save(self.step) and self._saving.has_failed(self.step)

    def _waits_to_save(self) -> bool:
        """Return True until the last save, which has failed, is tried again."""
        if not self._is_unsaved or not self._save_requests.retries_later():
            return False
        self._context.stall.restart(self._context.now())
        return True

    def _end(self, phase: Phase) -> None:
        if phase.kind == "done":
            self._context.is_over = True
        elif phase.kind == "training":
            self.step = phase.last
        elif phase.kind == "evaluating":
            self._context.work.end_evaluation()
        elif phase.kind == "predicting":
            assert self._scoring is not None
            self._publishing = True
            self._context.disk.run("publishing the scores", self._scoring.publish, self._note_published)

    def _note_published(self, scored: dict[str, object]) -> None:
        self._publishing = False
        self._context.events.write(event="scored", **scored)

    def _advance(self) -> None:
        context, phases = self._context, self._context.phases
        if phases.current is None and context.job.task == "train":
            self._saving.tidy()
        if self._is_unsaved and not self._save_requests.gives_up:
            phases.save_again()
        phase = phases.advance()
        if phase.kind == "saving":
            context.work.end_phase()
            samples = self._grid.samples_before(phase.last)
            self._saving.begin(phase, samples, partial(self._begin_saving, phase))
            return
        if phase.kind == "done":
            self._saving.require_saved(self.step)
            if context.unreadable is not None:
                self._save_requests.fail_unreadable(context.unreadable, self.step)
                return
        self._begin(phase, self._work_of(phase))

    def _begin_saving(self, phase: Phase, work: SaveModel | None) -> None:
        if self._context.is_ending:
            return
        if work is not None:
            self._begin(phase, work)
        else:
            self._context.phases.writing.clear()
            self._context.phases.waiting.clear()

    def _begin(self, phase: Phase, work: PhaseWork) -> None:
        context = self._context
        if phase.kind == "done" and phase.is_cut:
            self._save_requests.note_stopped(self.steps_trained)
        else:
            context.events.write(event="phase", phase=phase.kind, step=self.step)
        context.stall.restart(context.now())
        context.work.instruct(Instruction(context.phases.number, work))
        self._save_requests.note_begun(phase)

    def _work_of(self, phase: Phase) -> PhaseWork:
        match phase.kind:
            case "training":
                return TrainSteps(phase.first, phase.last, *phase.reductions)
            case "evaluating" | "predicting":
                self._reporting.begin_scoring()
                self._context.work.evaluate(phase.first, phase.last)
                steps = EvaluateSteps if phase.kind == "evaluating" else PredictSteps
                return steps(phase.first, phase.last)
            case "paused":
                return Pause(phase.last)
            case _:
                return Stop(goes_on=phase.is_cut)
