"""The coordinator as a pure state machine: events in, effects out."""

# Invariants, which tests/unit/roles/coordinator/test_machine.py checks under random deaths, late and repeated
# messages, and saves; the files of the components have their own:
#
# - A step is never assigned to two living loaders, and each training step is assigned to one (`work.py`).
# - A checkpoint is published once per save, and only when every participant has written its part; it fails if one of
#   them could not, or died while it wrote (`checkpoints.py`).
# - A process's death is judged once, however often it is reported, and no message of a dead process changes anything
#   (`members.py`).
# - A phase begins once, with all participants of the one before done, and ends once. None begins once the job fails, or
#   ends by a signal whose time is up (`phases.py`).
# - After an evaluation, no evaluation step is charged to a loader.
# - Each request is answered at most once.
#
# Time is part of each event and never decreases. Nothing here reads a clock, opens a file or a socket, or starts a
# thread; the same events have the same effects.

from collections.abc import Callable
from typing import Any

from persia_cli.errors import WireError
from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.checkpoints import SAVE_AND_END, Saves
from persia_cli.roles.coordinator.following import Following
from persia_cli.roles.coordinator.members import Deaths, JobMembers
from persia_cli.roles.coordinator.phases import Phases, Shutdown
from persia_cli.roles.coordinator.record import Reporting, Traces
from persia_cli.roles.coordinator.state import (
    AddScores,
    Arrived,
    BeginCheckpoint,
    Effect,
    EndReached,
    Event,
    Failed,
    FindPortion,
    JobState,
    PublishCheckpoint,
    PublishScores,
    Signalled,
    TaskEnded,
    TimePassed,
    UsageMeasured,
    WriteTrace,
)
from persia_cli.roles.coordinator.work import RendezvousStore, WorkQueue
from persia_cli.wire.job_messages import (
    Death,
    Done,
    Fail,
    Halted,
    Heartbeat,
    Hello,
    Leave,
    Next,
    NextItem,
    Ready,
    Recorded,
    Report,
    Saved,
    SaveNow,
    Scores,
    StoreCall,
    Unreadable,
)
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, refused


class CoordinatorMachine:
    """The components of one job's coordinator. `handle` is the only way in, and its result the only way out."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self._work = WorkQueue(state)
        self._saves = Saves(state, self._work)
        self._deaths = Deaths(state, self._work, self._saves)
        self._members = JobMembers(state, self._deaths)
        self._reporting, self._traces = Reporting(state, self._saves.cuts), Traces(state)
        self._following = Following(state, self._work, self._saves)
        self._phases = Phases(state, self._work, self._saves, self._deaths, self._reporting)
        self._shutdown = Shutdown(state, self._work, self._members, self._saves, self._traces)
        self._handlers: dict[type[Message], Callable[[Peer, Any], None]] = {
            Hello: self._members.on_hello,
            Ready: self._members.on_ready,
            Heartbeat: self._members.on_heartbeat,
            Death: self._deaths.on_death,
            Next: self._work.on_next,
            NextItem: self._work.on_next_item,
            StoreCall: RendezvousStore(state).on_call,
            Done: self._phases.on_done,
            Halted: self._saves.on_halted,
            Saved: self._saves.on_saved,
            SaveNow: self._saves.on_save_now,
            Unreadable: self._saves.on_unreadable,
            Report: self._reporting.on_report,
            Recorded: self._traces.on_recorded,
            Fail: self._shutdown.on_fail,
            Leave: self._shutdown.on_leave,
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
                self._saves.end(event.name, f"{COORDINATOR}-0")
            case UsageMeasured():
                state.record.note(f"{COORDINATOR}-0", event.usage)
                if event.is_last:
                    state.record.write_roles()
            case Failed():
                state.abort(event.text, event.exit_code)
            case EndReached():
                self._shutdown.stop_replicas(event.why)
        if not state.stopping:
            self._following.tick()
            self._saves.tick()
            self._phases.tick()
            if isinstance(event, TimePassed):
                self._reporting.report_progress()
                self._members.on_time(event)
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
                self._phases.on_save_begun(phase, event.result)
            case PublishCheckpoint():
                self._saves.on_published(event.result)
            case FindPortion():
                self._following.on_found(event.result)
            case PublishScores():
                self._phases.on_scores_published(event.result)
            case WriteTrace() as task:
                self._traces.on_written(task, event.result)
            case AddScores() as task:
                failure: WireError | None = event.result
                self.state.reply(task.peer, refused(failure) if failure else Ack())

    def _on_scores(self, peer: Peer, message: Scores) -> None:
        rank = self.state.find(message.sender, only="nn-worker").index
        self.state.start(AddScores(peer, rank, message.batch, message.logits))
