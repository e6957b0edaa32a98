"""The state of one job, which the components of its coordinator share."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.membership import Member, Membership, StallDetector
from persia_cli.control.phases import PendingRequests, PhaseMachine
from persia_cli.errors import DiskError, PersiaError, RoleError, UserError, WireError
from persia_cli.observe.journal import Journal
from persia_cli.observe.record import RunRecord
from persia_cli.plan.job import Job, job_phases, participants
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.roles.task_thread import TaskThread
from persia_cli.wire.message import Message, Sender
from persia_cli.wire.server import Peer, Server

log = logging.getLogger(__name__)


class ReplicaError(PersiaError):
    """The error of a replica that ended the job."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(slots=True)
class Ending:
    """A signal that ends the job once its model is saved, and the replica that received it."""

    signal: str
    replica: str
    deadline_s: float


@dataclass(slots=True)
class UnreadableStep:
    """The first step of a split whose samples cannot be read, and a sentence on the reason."""

    split: int
    step: int
    error: str


class JobContext:
    """The state that a message changes and that decides what happens next; it belongs to the poll loop's thread.

    `now` returns the seconds in which the coordinator has run.
    """

    def __init__(
        self,
        server: Server,
        run: Run,
        job: Job,
        *,
        events: Journal,
        record: RunRecord,
        tracker: EvaluationTracker,
        now: Callable[[], float],
        wake: Callable[[], None],
        is_saved: bool,
    ) -> None:
        """Create the state before the first phase; `is_saved` is as in `schedule`, `wake` ends a wait of the loop."""
        self._server = server
        self.run, self.job = run, job
        self.events, self.record, self.tracker, self.now = events, record, tracker, now
        self.disk = TaskThread("disk", wake)
        self.membership, self.requests = Membership(participants(run, job)), PendingRequests()
        self.phases: PhaseMachine = job_phases(run, job, tracker, self.requests, is_saved)
        self.stall = StallDetector()
        self.work = WorkQueue(server, job.first_step, job.steps)
        self.begun = False
        """True once all replicas are ready."""
        self.is_over = False
        """True once all phases are done."""
        self.stopping = False
        """True once replicas are asked to end."""
        self.informed: set[str] = set()
        """Names of the replicas that received the request to end."""
        self.failure: ReplicaError | None = None
        self.ending: Ending | None = None
        self.bad_rows: set[int] = set()
        """The numbers of rows that are left out since a value cannot be used."""
        self.unreadable: UnreadableStep | None = None
        """The step before which the model is saved and the job fails."""
        self.stop_reason: str | None = None
        """The reason why the job ends now, although its model may not be saved."""

    @property
    def is_ending(self) -> bool:
        """True if the job ends before all phases are done, so that no phase begins any more."""
        return self.stopping or self.failure is not None or self.stop_reason is not None

    def reply(self, peer: Peer, message: Message) -> None:
        """Answer a request."""
        self._server.reply(peer, message)

    def find(self, sender: Sender, only: str | None = None) -> Member:
        """Return the sender of a request; raise WireError if it is unknown or does not have the role `only`."""
        member = self.membership.find(sender.role, sender.index, sender.incarnation)
        if only is not None and member.role != only:
            raise WireError(f"this message is for replicas of the role {only}, but {member.name} sent it")
        member.last_seen_s = self.now()
        return member

    def abort(self, text: str, exit_code: int = RoleError.exit_code) -> None:
        """Fail the job; a job that a signal ends already only ends earlier."""
        if self.ending is not None and exit_code != UserError.exit_code:
            # Processes that are killed after a signal belong to the same end, which is no failure.
            self.stop_reason = self.stop_reason or text
        elif self.failure is None:
            self.failure = ReplicaError(text, exit_code)
            try:
                self.events.write(event="phase", phase="failed", error=text, exit_code=exit_code)
            except DiskError as error:
                log.error("the record lacks the reason of the failure: %s", error)
