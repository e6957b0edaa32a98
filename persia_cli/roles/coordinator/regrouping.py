"""The coordinator's part when all NN workers are new processes: they go on with the phase, or begin it anew."""

from collections.abc import Callable

from persia_cli.control.phases import PhaseMachine
from persia_cli.observe.record import RunRecord
from persia_cli.roles.coordinator.early_saves import EarlySaves
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.wire.job_messages import Instruction, TrainSteps


class Regrouping:
    """Sets the job's phase and record to where ranks that have just joined begin; they have nothing under way."""

    def __init__(
        self,
        joining: JoinHandler,
        record: RunRecord,
        reporting: Reporting,
        phases: PhaseMachine,
        work: WorkQueue,
        early: EarlySaves,
        advance: Callable[[], None],
    ) -> None:
        """`advance` begins the next phase."""
        self._record, self._reporting, self._phases = record, reporting, phases
        self._work, self._early, self._advance = work, early, advance
        joining.on_regrouped = self._begin_again

    def _begin_again(self) -> None:
        self._record.take_back()
        self._reporting.forget()
        number, phase = self._phases.begin_again(), self._phases.current
        if phase is None:
            return
        if phase.again:
            self._advance()
        elif number is not None:
            # Ranks that begin have to know where the phase ends, if it has been agreed that it is cut short.
            self._work.instruct(Instruction(number, TrainSteps(phase.first, phase.last, *phase.reductions)))
            self._early.note_begun(phase)
