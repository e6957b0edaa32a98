"""The phases of a job: the next one begins when the present one is done."""

from typing import Any

from persia_cli.control.phases import Phase
from persia_cli.control.position import StepGrid
from persia_cli.roles.coordinator.deaths import Replacements
from persia_cli.roles.coordinator.record import Reporting
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.state import JobState, PublishScores
from persia_cli.roles.coordinator.work import WorkQueue
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


class Progression:
    """The phases of a job in order; `step` is the last step of the completed training phases.

    A phase begins once, when all participants of the one before are done, and ends once. No phase begins once the job
    is ending.
    """

    def __init__(
        self,
        state: JobState,
        grid: StepGrid,
        step: int,
        work: WorkQueue,
        saving: Saving,
        save_requests: SaveRequests,
        reporting: Reporting,
        replacements: Replacements,
    ) -> None:
        """`grid` is the training grid, which begins at `step`."""
        self._state, self._grid, self.step = state, grid, step
        self._work, self._saving, self._save_requests, self._reporting = work, saving, save_requests, reporting
        self._replacements = replacements
        self._ended: Phase | None = None
        """The last phase whose end has been handled."""
        self._publishing = False
        """True while the file of a prediction is published."""

    @property
    def steps_trained(self) -> int:
        """The last step that is certainly trained."""
        return max(self.step, self._state.record.step)

    def on_done(self, peer: Peer, message: Done) -> None:
        """Record that a replica has carried out an instruction."""
        state = self._state
        member = state.find(message.sender)
        if message.figures is not None:
            state.record.note(member.name, message.figures, member.incarnation)
            self._replacements.note_counters(member, message.figures.counters)
        state.reply(peer, Ack())
        if state.stopping:
            state.informed.add(member.name)
        else:
            state.phases.finish(member.name, message.number)

    def tick(self) -> None:
        """Begin the next phase if the present one is done; called after every event."""
        while self._is_between_phases() and not self._state.phases.is_blocked and not self._waits_to_save():
            self._advance()

    def _is_between_phases(self) -> bool:
        """Return True if the next phase may begin; handle the end of the present one, once."""
        state, phase = self._state, self._state.phases.current
        if state.is_over or state.is_ending:
            return False
        if phase is None:
            return state.begun
        if state.phases.waiting:
            return False
        # The end is handled once, though this is called again while scores are being published.
        if phase is not self._ended:
            self._ended = phase
            self._end(phase)
        return not state.is_over and not self._publishing

    @property
    def _is_unsaved(self) -> bool:
        """True if the end comes next and the last save has failed; ask only between phases."""
        return self._state.phases.is_last_save(self.step) and self._saving.has_failed(self.step)

    def _waits_to_save(self) -> bool:
        """Return True until the last save, which has failed, is tried again."""
        if not self._is_unsaved or not self._save_requests.retries_later():
            return False
        self._state.stall.restart(self._state.now)
        return True

    def _end(self, phase: Phase) -> None:
        if phase.kind == "done":
            self._state.is_over = True
        elif phase.kind == "training":
            self.step = phase.last
        elif phase.kind == "evaluating":
            self._work.end_evaluation()
        elif phase.kind == "predicting":
            self._publishing = True
            self._state.start(PublishScores())

    def on_scores_published(self, scored: dict[str, Any]) -> None:
        """Record that the file of a prediction is complete."""
        self._publishing = False
        self._state.events.write(event="scored", **scored)

    def _advance(self) -> None:
        state, phases = self._state, self._state.phases
        if phases.current is None and state.job.task == "train":
            self._saving.tidy()
        if self._is_unsaved and not self._save_requests.gives_up:
            phases.save_again()
        phase = phases.advance()
        if phase.kind == "saving":
            self._work.end_phase()
            self._saving.begin(phase, self._grid.samples_before(phase.last))
            return
        if phase.kind == "done":
            if not self._saving.require_saved(self.step):
                return
            if state.unreadable is not None:
                self._save_requests.fail_unreadable(state.unreadable, self.step)
                return
        self._begin(phase, self._work_of(phase))

    def on_save_begun(self, phase: Phase, result: SaveModel | dict[str, Any] | None) -> None:
        """Have the replicas write a checkpoint whose folder is ready, or end the phase if there is nothing to write."""
        work = self._saving.on_begun(result)
        if self._state.is_ending:
            return
        if work is not None:
            self._begin(phase, work)
        else:
            self._state.phases.writing.clear()
            self._state.phases.waiting.clear()

    def _begin(self, phase: Phase, work: PhaseWork) -> None:
        state = self._state
        if phase.kind == "done" and phase.is_cut:
            self._save_requests.note_stopped(self.steps_trained)
        else:
            state.events.write(event="phase", phase=phase.kind, step=self.step)
        state.stall.restart(state.now)
        self._work.instruct(Instruction(state.phases.number, work))
        self._save_requests.note_begun(phase)

    def _work_of(self, phase: Phase) -> PhaseWork:
        match phase.kind:
            case "training":
                return TrainSteps(phase.first, phase.last, *phase.reductions)
            case "evaluating" | "predicting":
                self._reporting.begin_scoring()
                self._work.evaluate(phase.first, phase.last)
                steps = EvaluateSteps if phase.kind == "evaluating" else PredictSteps
                return steps(phase.first, phase.last)
            case "paused":
                return Pause(phase.last)
            case _:
                return Stop(goes_on=phase.is_cut)
