"""The state of one job that the components of its coordinator share, its events, and the effects that they have.

An event is all that reaches the coordinator; its time is part of it. An effect is all that the coordinator does. So
the components need no socket, clock, disk or thread: `machine.py` has an event handled, and the edge in
`coordinator.py` carries the effects out, in their order.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import Best, EvaluationTracker
from persia_cli.control.membership import Member, Membership, StallDetector
from persia_cli.control.phases import PendingRequests, Phase, PhaseMachine
from persia_cli.control.portions import Portions
from persia_cli.control.position import StepGrid
from persia_cli.errors import PersiaError, RoleError, UserError, WireError
from persia_cli.observe.record import RunRecord
from persia_cli.observe.record_state import RecordState
from persia_cli.observe.recordings import TracePortion
from persia_cli.plan.job import Job
from persia_cli.store.checkpoints.manifest import RunProgress
from persia_cli.store.checkpoints.saved import SavedFile
from persia_cli.wire.job_messages import ReplicaUsage
from persia_cli.wire.message import BatchId, Message, ProcessId, Sender
from persia_cli.wire.server import Peer


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Create the folder of a checkpoint, or renew the record in the one that has this step already.

    Result: the instruction to the replicas; None if there is nothing to save; or the event of a failed renewal.
    """

    phase: Phase
    samples: int
    """Number of samples trained so far."""
    state: RecordState
    progress: RunProgress
    best: Best | None
    """Given if the checkpoint is the best so far."""
    since: int | None = None
    """Of a cut for the publisher: the first step whose rows it has."""

    @property
    def doing(self) -> str:
        return f"starting the checkpoint of step {self.phase.last:,}"


@dataclass(frozen=True, slots=True)
class PublishCheckpoint:
    """Write the manifest of a checkpoint, or abort it for `failure`; result: the events of that."""

    step: int
    files: tuple[SavedFile, ...]
    failure: str

    @property
    def doing(self) -> str:
        return f"publishing the checkpoint of step {self.step:,}"


@dataclass(frozen=True, slots=True)
class AddScores:
    """Add the scores of a batch to the file of a prediction; result: a WireError if they cannot be the rank's."""

    peer: Peer
    rank: int
    batch: BatchId
    logits: NDArray[np.float32]

    doing: ClassVar[str] = "writing scores"


@dataclass(frozen=True, slots=True)
class PublishScores:
    """Give the file of a prediction its name; result: the keys of the event `scored`."""

    doing: ClassVar[str] = "publishing the scores"


@dataclass(frozen=True, slots=True)
class WriteTrace:
    """Append a portion to the trace of a replica; result: the reason why the disk refused it, or empty."""

    peer: Peer
    name: str
    incarnation: int
    portion: TracePortion

    doing: ClassVar[str] = "writing the trace"


@dataclass(frozen=True, slots=True)
class FindPortion:
    """Find the next portion of data that grows, and write it to the record; result: a `following.Found`."""

    doing: ClassVar[str] = "looking for new files"


Task = BeginCheckpoint | PublishCheckpoint | AddScores | PublishScores | WriteTrace | FindPortion
"""Work that waits for disks or stores. Tasks are carried out one after the other; `doing` names one in sentences."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of a peer has arrived."""

    now: float
    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is so late, and all messages that had arrived are handled: what is due by the clock may be done."""

    now: float
    doing: str = ""
    """The task that waits for a disk at present, and for how many seconds."""
    doing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task is done, with the result that its class names."""

    now: float
    task: Task
    result: Any = None


@dataclass(frozen=True, slots=True)
class Signalled:
    """The coordinator's process has received a signal."""

    now: float
    name: str


@dataclass(frozen=True, slots=True)
class UsageMeasured:
    """The coordinator's own usage of its machine; `is_last` at the end of the job."""

    now: float
    usage: ReplicaUsage
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The coordinator cannot do its own work, such as writing to a full disk, so that the job fails."""

    now: float
    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class EndReached:
    """The job ends early, for the reason `why`: all replicas are to end."""

    now: float
    why: str


Event = Arrived | TimePassed | TaskEnded | Signalled | UsageMeasured | Failed | EndReached


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request."""

    peer: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Write:
    """Append a line to a journal of the run directory."""

    journal: str
    """The name of its file."""
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """Have a task carried out after the earlier ones; `TaskEnded` follows."""

    task: Task


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a process of this machine."""

    process: ProcessId
    or_else: str
    """The error with which the job fails if it cannot be killed."""


Effect = Reply | Write | Start | Kill


class JournalLines(NamedTuple):
    """A journal for components: each line becomes an effect."""

    effects: list[Effect]
    journal: str

    def write(self, **fields: Any) -> None:
        """Have a line written."""
        self.effects.append(Write(self.journal, fields))


class ReplicaError(PersiaError):
    """The error of a replica that ended the job."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Ending(NamedTuple):
    """A signal that ends the job once its model is saved, and the replica that received it."""

    signal: str
    replica: str
    deadline_s: float


class JobOrigin(NamedTuple):
    """The coordinator's process, and what the job continues from."""

    process: ProcessId
    host: str
    saved: str = ""
    """The place of the checkpoint of this run that has all that is trained so far; empty if there is none."""
    rows: int = 0
    """Number of rows that all servers together must load."""
    rolled_back_s: float = 0.0
    """Seconds between the death that has rolled the job back, if any, and the start of the coordinator."""


GONE_S = 2.0
"""Seconds of silence after which a replica is taken for gone: at the end of a job, or if its name is claimed."""


class JobState:
    """The state of one job that an event changes and that decides what happens next."""

    def __init__(
        self,
        run: Run,
        job: Job,
        origin: JobOrigin,
        *,
        expected: dict[str, int],
        phases: PhaseMachine,
        requests: PendingRequests,
        effects: list[Effect],
        events: JournalLines,
        record: RunRecord,
        tracker: EvaluationTracker,
        grid: StepGrid | Portions,
        step: int,
    ) -> None:
        """Create the state before the first phase; `record` and `events` write to `effects`.

        `grid` is that of training, which begins at `step`; data that grows has portions in its place.
        """
        self.run, self.job, self.origin, self.tracker, self.record = run, job, origin, tracker, record
        self.grid, self.step = grid, step
        """The last step of the completed training phases."""
        self.now = 0.0
        """The time of the event that is handled: the seconds for which the coordinator has run."""
        self.effects, self.events = effects, events
        self.membership, self.requests, self.phases = Membership(expected), requests, phases
        self.stall = StallDetector()
        self.started = False
        """True once all replicas are ready."""
        self.is_over = False
        """True once all phases are done."""
        self.stopping = False
        """True once replicas are asked to end."""
        self.informed: set[str] = set()
        """Names of the replicas that received the request to end."""
        self.failure: ReplicaError | None = None
        self.ending: Ending | None = None
        self.stop_reason: str | None = None
        """The reason why the job ends now, although its model may not be saved."""

    @property
    def portions(self) -> Portions | None:
        """The portions of data that grows; None for other data."""
        return self.grid if isinstance(self.grid, Portions) else None

    @property
    def is_ending(self) -> bool:
        """True if the job ends before all phases are done, so that no phase begins after this."""
        return self.stopping or self.failure is not None or self.stop_reason is not None

    @property
    def is_resumable(self) -> bool:
        """True if a signal ended the job before all was done."""
        return bool(self.ending) and not self.failure and (not self.is_over or self.phases.is_cut)

    @property
    def steps_trained(self) -> int:
        """The last step that is certainly trained."""
        return max(self.step, self.record.step)

    def write_stopped(self) -> None:
        """Record that the job ends early, and the signal that ends it, if any."""
        signal = {"signal": self.ending.signal, "replica": self.ending.replica} if self.ending else {}
        why = {"text": self.stop_reason} if self.stop_reason else {}
        self.events.write(event="phase", phase="stopped", step=self.steps_trained, **signal, **why)

    def reply(self, peer: Peer, message: Message) -> None:
        """Have a request answered."""
        self.effects.append(Reply(peer, message))

    def start(self, task: Task) -> None:
        """Have a task carried out."""
        self.effects.append(Start(task))

    def find(self, sender: Sender, only: str | None = None) -> Member:
        """Return the sender of a request; raise WireError if it is unknown or does not have the role `only`."""
        member = self.membership.find(sender.role, sender.index, sender.incarnation)
        if only is not None and member.role != only:
            raise WireError(f"this message is for replicas of the role {only}, but {member.name} sent it")
        member.last_seen_s = self.now
        return member

    def abort(self, text: str, exit_code: int = RoleError.exit_code) -> None:
        """Fail the job; one that a signal ends already only ends earlier, and one whose replicas end does not fail."""
        if self.stopping:
            return
        if self.ending is not None and exit_code != UserError.exit_code:
            # Processes that are killed after a signal belong to the same end, which is no failure.
            self.stop_reason = self.stop_reason or text
        elif self.failure is None:
            self.failure = ReplicaError(text, exit_code)
            self.events.write(event="phase", phase="failed", error=text, exit_code=exit_code)
