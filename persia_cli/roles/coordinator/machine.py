"""The coordinator as a pure state machine: events in, effects out."""

# Invariants, which tests/unit/roles/coordinator/test_machine.py checks under random deaths, late and repeated
# messages, and saves:
#
# - A step is never assigned to two living loaders, and each training step is assigned to one.
# - A phase begins once, with all participants of the one before done, and ends once.
# - A checkpoint is published once per save, and only when every participant has written its part; it fails if one of
#   them could not, or died while it wrote.
# - After an evaluation, no evaluation step is charged to a loader.
# - Each request is answered at most once, and no message of a dead process changes anything.
# - A process's death is judged once, however often it is reported.
# - No phase begins once the job fails, or ends by a signal whose time is up.
#
# Time is part of each event and never decreases. Nothing here reads a clock, opens a file or a socket, or starts a
# thread; the same events have the same effects.

from collections.abc import Callable
from typing import Any

from persia_cli.control.membership import Membership
from persia_cli.control.position import StepGrid
from persia_cli.errors import WireError
from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.deaths import Replacements
from persia_cli.roles.coordinator.ending import Shutdown
from persia_cli.roles.coordinator.liveness import Liveness
from persia_cli.roles.coordinator.members import Joining, Loading, Readiness
from persia_cli.roles.coordinator.phases import Progression
from persia_cli.roles.coordinator.record import Reporting, Traces
from persia_cli.roles.coordinator.rendezvous import RendezvousStore
from persia_cli.roles.coordinator.save_requests import SAVE_AND_END, SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.state import (
    AddScores,
    Arrived,
    BeginCheckpoint,
    Effect,
    EndReached,
    Event,
    Failed,
    JobState,
    PublishCheckpoint,
    PublishScores,
    Signalled,
    TaskEnded,
    TimePassed,
    UsageMeasured,
    WriteTrace,
)
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.wire.job_messages import (
    Death,
    Done,
    Fail,
    Heartbeat,
    Held,
    Hello,
    Leave,
    Next,
    Ready,
    Recorded,
    Report,
    Saved,
    SaveNow,
    Scores,
    StoreCall,
    TakeItem,
    Unreadable,
)
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, refused


class CoordinatorMachine:
    """The components of one job's coordinator. `handle` is the only way in, and its result the only way out."""

    def __init__(
        self,
        state: JobState,
        grid: StepGrid,
        step: int,
        *,
        saved: str = "",
        rows: int = 0,
        warnings_of: Callable[[Membership], list[str]] = lambda membership: [],
        rolled_back_s: float = 0.0,
    ) -> None:
        """Begin a job whose model is trained up to `step`; `saved` is the place of its checkpoint, if any.

        Servers must load `rows` rows. See `Readiness` for the others.
        """
        self.state = state
        self._work = WorkQueue(state)
        self._save_requests = SaveRequests(state, self._work, saved)
        self._saving = Saving(state, self._save_requests)
        self._replacements = replacements = Replacements(state, self._work, self._saving)
        joining, self._traces = Joining(state), Traces(state)
        self._shutdown = Shutdown(state, self._work, joining, self._save_requests, self._traces)
        loading, self._reporting = Loading(state, rows), Reporting(state)
        self._liveness = Liveness(state, loading, replacements)
        self._progression = Progression(
            state, grid, step, self._work, self._saving, self._save_requests, self._reporting, replacements
        )
        readiness = Readiness(state, loading, replacements, warnings_of, rolled_back_s)
        self._handlers: dict[type[Message], Callable[[Peer, Any], None]] = {
            Hello: joining.on_hello,
            Ready: readiness.on_ready,
            Next: self._work.on_next,
            Held: self._save_requests.on_held,
            SaveNow: self._save_requests.on_save_now,
            Unreadable: self._save_requests.on_unreadable,
            Done: self._progression.on_done,
            Saved: self._saving.on_saved,
            TakeItem: self._work.on_take_item,
            Report: self._reporting.on_report,
            Heartbeat: self._liveness.on_heartbeat,
            Fail: self._shutdown.on_fail,
            Leave: self._shutdown.on_leave,
            Death: replacements.on_death,
            Recorded: self._traces.on_recorded,
            StoreCall: RendezvousStore(state).on_call,
        }
        if state.job.task == "predict":
            self._handlers[Scores] = self._on_scores

    @property
    def accepted(self) -> list[type[Message]]:
        """The kinds of messages that this job expects."""
        return list(self._handlers)

    @property
    def awaited(self) -> set[str]:
        """Names of the replicas that are asked to end, and whose answer is awaited."""
        return self._shutdown.awaited()

    def handle(self, event: Event) -> list[Effect]:
        """Change the state, and return what the edge must do now, in this order."""
        state = self.state
        state.now = event.now
        match event:
            case Arrived():
                self._on_message(event.peer, event.message)
            case TaskEnded():
                self._on_task_ended(event)
            case Signalled() if event.name in SAVE_AND_END and not state.stopping:
                self._save_requests.end(event.name, f"{COORDINATOR}-0")
            case UsageMeasured():
                state.record.note(f"{COORDINATOR}-0", event.usage)
                if event.is_last:
                    state.record.write_roles()
            case Failed():
                state.abort(event.text, event.exit_code)
            case EndReached():
                self._end(event)
        if not state.stopping:
            self._save_requests.tick()
            self._progression.tick()
            if isinstance(event, TimePassed):
                self._reporting.report_progress()
                self._liveness.on_time(event)
        effects = state.effects.copy()
        state.effects.clear()
        return effects

    def _on_message(self, peer: Peer, message: Message) -> None:
        try:
            self._handlers[type(message)](peer, message)
        except WireError as error:
            self.state.reply(peer, refused(error))

    def _on_task_ended(self, event: TaskEnded) -> None:
        match event.task:
            case BeginCheckpoint(phase=phase):
                self._progression.on_save_begun(phase, event.result)
            case PublishCheckpoint():
                self._saving.on_published(event.result)
            case PublishScores():
                self._progression.on_scores_published(event.result)
            case WriteTrace() as task:
                self._traces.on_written(task, event.result)
            case AddScores() as task:
                failure: WireError | None = event.result
                self.state.reply(task.peer, refused(failure) if failure else Ack())

    def _on_scores(self, peer: Peer, message: Scores) -> None:
        rank = self.state.find(message.sender, only="nn-worker").index
        self.state.start(AddScores(peer, rank, message.batch, message.logits))

    def _end(self, event: EndReached) -> None:
        """Ask all replicas to end; a job that has not failed is recorded as stopped."""
        if self.state.failure is None:
            self._save_requests.note_stopped(self._progression.steps_trained)
        self._shutdown.stop_replicas(event.why, event.goes_on)
