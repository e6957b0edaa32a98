"""A replica's session with the coordinator: join, heartbeats, instructions, reports, and restarts of its peers."""

import logging
import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.control.membership import RunningClock
from persia_cli.disk import refusal
from persia_cli.errors import ConfigError, PersiaError, RoleError, WireError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.machine import cpu_seconds, resident_bytes
from persia_cli.observe.trace import Trace
from persia_cli.plan.job import Job
from persia_cli.roles.recording import Recording
from persia_cli.storage.addresses import local_path
from persia_cli.store.checkpoints.saved import SavedFile, encode_files
from persia_cli.version import __version__
from persia_cli.wire.addresses import is_remote, with_domain
from persia_cli.wire.client import Client
from persia_cli.wire.job_messages import (
    REPORTS_AHEAD,
    Beat,
    Change,
    Counters,
    CutShort,
    Done,
    Fail,
    Halt,
    Halted,
    Heartbeat,
    Hello,
    Instruction,
    IntervalMetrics,
    Item,
    Leave,
    Next,
    NextItem,
    PhaseWork,
    Ready,
    ReplicaUsage,
    Report,
    Saved,
    ScoreCounts,
    ScoredSamples,
    Scores,
    Stop,
    StoreCall,
    StoreValue,
    Unreadable,
    Welcome,
)
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.message import Array, BatchId, Request, Sender
from persia_cli.wire.messages import PROTOCOL, Ack
from persia_cli.wire.process import this_process
from persia_cli.wire.shared_memory import share_memory

log = logging.getLogger(__name__)

IntervalReport = tuple[IntervalMetrics, ScoreCounts, ScoredSamples | None]
"""The sums of an interval, the histogram of its scores, and the scores of samples if metrics need them."""

HEARTBEAT_S = 0.5
PATIENCE = 2
"""Multiple of `cluster.silence_timeout_s` for which a peer may be silent: the coordinator replaces it before that."""
SIGNALS_S = 0.2
"""Seconds between two checks for a signal."""
JOIN_RETRY_S = 0.5
LATE_S = 5.0  # without any answer, after which a replica logs the address of the coordinator
FAREWELL_S = 3.0
REASON_LIMIT = 10_000
"""Maximum number of characters of a failure's reason that are sent to the coordinator."""
LEAVE_S = 1.0
STOP_S = 5.0
"""The default of `cluster.stop_timeout_s`, in use before the run is known."""


class StoppedError(PersiaError):
    """Raised when a replica was asked to stop before it had any work."""


class CoordinatorSession:
    """One replica's client of the coordinator, on the replica's own poll loop.

    `stop` becomes True when the job is over, or when this replica is stopped; then `stopped_by` may name the signal.
    Signals that end the job, but only after its model is saved, are appended to `signals` by name.
    The replica records its work in `trace`. Each heartbeat sends the results of `counters` and `waited_s`, and the
    present piece of `work`.
    """

    def __init__(self, loop: Loop, coordinator: str, role: str, index: int, start_timeout_s: float = 120.0) -> None:
        self.loop = loop
        self.role = role
        self.index = index
        self.stop = False
        self.stopped_by = ""
        self.signals: deque[str] = deque()
        self.is_resumable = False
        """True if a signal ended or will end the job, so that it can be resumed."""
        self.stop_timeout_s = STOP_S
        self.counters: Callable[[], Counters] = Counters
        self.waited_s: Callable[[], float] = lambda: loop.idle_s
        self.work = Work()
        self.trace = Trace()
        self._began_s = time.monotonic()
        self._awake = RunningClock(self._began_s)
        self._address = coordinator
        self._on_instruction: Callable[[int, PhaseWork], None] = lambda number, work: None
        self._stop_received = False
        self._stop_number: int | None = None
        self._reports = self._unacked_reports = 0
        self.report_slots = threading.Semaphore(REPORTS_AHEAD)
        """Permits for unacknowledged reports; a caller of `report` acquires one first, and the answer releases it."""
        self._after_reports: list[Done] = []
        self._sender: Sender | None = None
        self._recording: Recording | None = None
        self._addresses: dict[str, list[str]] = {}
        self.changes = PeerRestarts(loop)
        self._client: Client = loop.connect(coordinator, "coordinator", self._identity, JOIN_RETRY_S, start_timeout_s)
        loop.every(SIGNALS_S, self._pass_signals_on)

    def _pass_signals_on(self) -> None:
        """Report signals to the coordinator; the replica works on until the coordinator ends the job."""
        while self.signals:
            self.is_resumable = self.is_resumable or not self.stop  # one that comes at the end changes nothing
            leave = Leave(self.role, self.index, this_process(), self.signals.popleft(), serves=True)
            self._client.request(leave, waiting_for="the coordinator to note a signal")

    @property
    def name(self) -> str:
        """Replica name."""
        return f"{self.role}-{self.index}"

    @property
    def _identity(self) -> bytes:
        return identity_of(self.name, this_process())

    def join(self, own_address: str) -> tuple[Run, Job]:
        """Join the job and wait until all replicas have; return the run and the job.

        Raise WireError if the coordinator refuses or gives no sign of life, StoppedError if asked to stop meanwhile.
        """
        welcome: list[Welcome] = []
        hello = Hello(
            role=self.role,
            index=self.index,
            process=this_process(),
            host=socket.gethostname(),
            version=__version__,
            protocol=PROTOCOL,
            address=with_domain(own_address),
        )
        self._client.request(hello, on_reply=welcome.append, waiting_for="a place in the job")
        late_s = time.monotonic() + LATE_S
        while not welcome:
            if self.stop:
                raise StoppedError(f"{self.name} was stopped before all roles had joined")
            try:
                self.loop.poll(0.2)
            except WireError as refused:
                if self.is_resumable:
                    raise StoppedError(str(refused)) from refused  # the signal that this replica received is the reason
                raise
            if time.monotonic() > late_s and not self._client.has_answered:
                log.warning("waiting for the coordinator at %s: no answer for %g s", self._client.address, LATE_S)
                late_s = math.inf
        run = Run.model_validate_json(welcome[0].run)
        self._sender = Sender(self.role, self.index, welcome[0].incarnation)
        self.loop.every(min(HEARTBEAT_S, run.cluster.silence_timeout_s / 4), self._beat)
        self._retry_s = self._client.retry_s = run.cluster.retry_s
        self._silence_timeout_s = self._client.silence_timeout_s = run.cluster.silence_timeout_s
        self.stop_timeout_s = run.cluster.stop_timeout_s
        self._addresses = welcome[0].addresses
        share_arrays(self.loop, self._address, run)
        job = Job.from_json(welcome[0].job)
        if self.role == "embedding-server" or self.name == "nn-worker-0":
            require_folder(run, job, self.name)
        self.trace = Trace(job.trace_first, job.trace_last)
        self._recording = Recording(self.trace, self.name, self._sender, self._client)
        return run, job

    def connect(self, role: str) -> list[Client]:
        """Connect to every replica of a role, in the order of index; only after `join`."""
        return [
            self.loop.connect(
                address,
                f"{role}-{index}",
                self._identity,
                retry_s=self._retry_s,
                silence_timeout_s=PATIENCE * self._silence_timeout_s,
            )
            for index, address in enumerate(self._addresses[role])
        ]

    def ready(
        self,
        on_instruction: Callable[[int, PhaseWork], None],
        parameters: int = 0,
        rows: int = 0,
    ) -> None:
        """Report ready and follow the coordinator's instructions from now on; the others are as in `Ready`."""
        self._on_instruction = on_instruction
        ready = Ready(self.sender, parameters, rows)
        self._client.request(ready, waiting_for="the coordinator to record that it is ready")
        self._ask(0)

    @property
    def sender(self) -> Sender:
        """The sender of messages to the coordinator."""
        if self._sender is None:
            raise RoleError(f"{self.name} has not joined the job")
        return self._sender

    def halted(self, number: int, step: int) -> None:
        """Report the first step that this rank has not started, as an instruction requested."""
        self._client.request(Halted(self.sender, number, step), waiting_for="the coordinator to choose a last step")

    def done(self, number: int) -> None:
        """Report an instruction as done, after the coordinator has acknowledged all earlier reports."""
        self._after_reports.append(Done(self.sender, number))
        self._send_done()

    def saved(self, step: int, files: Sequence[SavedFile], failure: str = "") -> None:
        """Report the files of this replica's part of a checkpoint, or the reason why they could not be written."""
        message = Saved(self.sender, step, encode_files(files), failure)
        self._client.request(message, waiting_for="the coordinator to record its files")

    def _send_done(self) -> None:
        while self._after_reports and not self._unacked_reports:
            self._client.request(self._after_reports.pop(0), waiting_for="the coordinator to record an end")

    def take_item(self, split: int, finished: int, portions: tuple[int, ...], on_item: Callable[[Item], None]) -> None:
        """Request the next work item of a split, and report that the steps before `finished` are done.

        `portions` are the numbers of those that the loader knows, of data that grows.
        """
        request = NextItem(self.sender, split, finished, portions)
        self._client.request(request, on_reply=on_item, waiting_for="a work item")

    def unreadable(
        self, split: int, step: int, error: str, rows: tuple[int, ...], on_allowed: Callable[[], None]
    ) -> None:
        """Report that a step, or some of its rows, cannot be read; call `on_allowed` if it may be used without them."""
        message = Unreadable(self.sender, split, step, error[:REASON_LIMIT], rows)
        self._client.request(message, lambda _: on_allowed(), waiting_for="the coordinator to count unreadable rows")

    def ask_store(self, call: StoreCall, on_value: Callable[[StoreValue], None]) -> None:
        """Send a call of the ranks' store."""
        self._client.request(call, on_reply=on_value, waiting_for="the other NN workers")

    def report(self, interval: IntervalReport) -> None:
        """Send one log interval's metrics; acquire one of `report_slots` first."""
        self._unacked_reports += 1
        self._reports += 1
        report = Report(self.sender, self._reports, *interval)
        self._client.request(report, on_reply=self._on_report_acked, waiting_for="the receipt of a report")

    def _on_report_acked(self, _: Ack) -> None:
        self._unacked_reports -= 1
        self.report_slots.release()
        self._send_done()

    def send_scores(self, batch: BatchId, logits: np.ndarray[Any, Any], on_taken: Callable[[], None]) -> None:
        """Send the logits of a batch; `on_taken` is called once the coordinator has them."""
        self._client.request(
            Scores(self.sender, batch, logits), on_reply=lambda _: on_taken(), waiting_for="the receipt of scores"
        )

    def fail(self, error: BaseException) -> None:
        """Report the error of this replica to the coordinator; best effort, within a few seconds."""
        if self._sender is None:
            return
        error = refusal(error) or error
        code = error.exit_code if isinstance(error, PersiaError) else 1
        text = f"internal error: {type(error).__name__}: {error}; the traceback is in the log of {self.name}"
        text = str(error) if isinstance(error, PersiaError) else text
        self._send_last(Fail(self.sender, text[:REASON_LIMIT], code), FAREWELL_S)

    def leave(self) -> None:
        """Report to the coordinator, unless it asked this replica to stop, that a signal ends it; best effort."""
        if self.stopped_by and not self._stop_received:
            self._send_last(Leave(self.role, self.index, this_process(), self.stopped_by, serves=False), LEAVE_S)

    def _send_last(self, message: Request[Ack], seconds: float) -> None:
        """Send the last message, and wait at most `seconds` for its answer and nothing else."""
        replies: list[Ack] = []
        self._client.request(message, on_reply=replies.append)
        self._client.attend(lambda: bool(replies), seconds)

    def farewell(self) -> None:
        """Answer the instruction to stop, if that ends the replica; wait a few seconds for an answer."""
        if self._stop_number is None:
            return
        self.end_trace(self.stop_timeout_s)
        self._send_last(Done(self.sender, self._stop_number, usage=self._usage(self.counters())), FAREWELL_S)

    def end_trace(self, seconds: float = FAREWELL_S) -> None:
        """Send the rest of the trace, if there is one; best effort, within `seconds`."""
        if self._recording is not None:
            self._recording.end(seconds)

    def _ask(self, after: int) -> None:
        self._client.request(Next(self.sender, after), on_reply=self._execute, waiting_for="the next instruction")

    def _execute(self, instruction: Instruction) -> None:
        log.info("instruction %d: %s", instruction.number, instruction.work)
        if isinstance(instruction.work, Stop):
            self.is_resumable = instruction.work.is_resumable
            self._stop_received = self.stop = True
            self._stop_number = instruction.number
            return
        if not isinstance(instruction.work, (Halt, CutShort)):
            self.changes.begin_phase()
        # A phase begins or ends: the record gets the counters of this moment.
        self._beat()
        self._on_instruction(instruction.number, instruction.work)
        self._ask(instruction.number)

    def _beat(self) -> None:
        if self.stop or self._recording is None:
            return
        counters = self.counters()
        doing, doing_s = self.work.age(counters, self._awake.at(time.monotonic()))
        beat = Heartbeat(self.sender, doing, round(doing_s, 3), self._usage(counters), self.changes.last_number)
        on_beat = partial(self._on_beat, self.trace.clock())
        self._client.request(beat, on_reply=on_beat, waiting_for="a heartbeat's answer")
        self._recording.send()

    def _usage(self, counters: Counters) -> ReplicaUsage:
        return usage_of(self.loop, counters, time.monotonic() - self._began_s, self.waited_s())

    def _on_beat(self, sent_ns: int, beat: Beat) -> None:
        assert self._recording is not None
        self._recording.clocks.add(sent_ns, beat.clock_ns, self.trace.clock())
        if beat.stop:
            self._stop_received = self.stop = True
        self.changes.apply(beat.changes)


class PeerRestarts:
    """The restarts of peers that the coordinator has reported; all on the thread of its poll loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.last_number = 0
        """Number of the last change."""
        self.on_restart: Callable[[str, int], None] = lambda role, index: None
        """Called with role and index of a replica once its new process accepts requests."""
        self._lent: list[Array] = []
        """Arrays that dead processes had borrowed, and may have passed on."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Hold back requests to replicas that have died, and repeat them at new processes."""
        for change in changes:
            if change.number > self.last_number:
                self._apply(change)
        self.last_number = max([self.last_number, *(change.number for change in changes)])

    def _apply(self, change: Change) -> None:
        name = f"{change.role}-{change.index}"
        self._lent += self._loop.forget(name, change.process)
        if not change.alive:
            log.info("%s has died; waiting for its new process", name)
            self._loop.pause(name)
            return
        log.info("%s has a new process%s", name, f" at {change.address}" if change.address else "")
        self._loop.reconnect(name, change.address)
        self.on_restart(change.role, change.index)

    def begin_phase(self) -> None:
        """Release the arrays that dead processes had borrowed: nothing is in flight, so no process reads them."""
        self._lent.clear()


COMPILING = "compiling the network"


class Piece(NamedTuple):
    """One piece of work; `number` distinguishes it from an equal one after it."""

    number: int = 0
    doing: str = ""
    """Such as "training step 7"; empty while the replica waits for others."""


class Work:
    """The piece of work in progress. One thread sets it; another reads its age."""

    def __init__(self) -> None:
        self._piece = Piece()
        self._seen: tuple[Piece, Any] = (self._piece, None)
        self._since_s = 0.0

    def begin(self, doing: str) -> None:
        """Begin a piece of work; the one before it, if any, is over."""
        # One assignment, so that the other thread never sees half of it.
        self._piece = Piece(self._piece.number + 1, doing)

    def end(self) -> None:
        """End the piece of work; from now on the replica waits for others."""
        self.begin("")

    def interruption(self, doing: str) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return two functions: the first begins this work in the middle of another, the second continues the other."""
        outer: list[str] = []

        def begin() -> None:
            outer.append(self._piece.doing)
            self.begin(doing)

        return begin, lambda: self.begin(outer.pop())

    def age(self, counters: Any, now: float) -> tuple[str, float]:
        """Return the present work and the seconds without progress in it; called about twice a second.

        Progress means that a piece of work is done or the replica's counters change. `now` is in seconds.
        """
        seen = (self._piece, counters)
        if seen != self._seen:
            self._seen, self._since_s = seen, now
        doing = seen[0].doing
        return doing, now - self._since_s if doing else 0.0


def usage_of(loop: Loop, counters: Counters, ran_s: float, waited_s: float) -> ReplicaUsage:
    """Return the resources that this process has used, and the messages on its loop, with these counters and times."""
    memory, exchanged = resident_bytes() + loop.shared_bytes, asdict(loop.exchanged)
    links = {role: {"wire": nbytes.wire, "shared": nbytes.shared} for role, nbytes in loop.traffic.items()}
    of_wire = (loop.counters, links, counters)
    return ReplicaUsage(cpu_seconds(), memory, *of_wire, ran_s, waited_s, exchanged, loop.unanswered)


def require_folder(run: Run, job: Job, name: str) -> None:
    """Raise ConfigError if a replica must write parts of checkpoints into a folder that its machine does not have."""
    checkpoint = run.checkpoint
    if job.task != "train" or not checkpoint.saves or "://" in (checkpoint.path or ""):
        return
    is_there = local_path(checkpoint.path).is_dir() if checkpoint.path else (Path(job.run_dir) / CONFIG).is_file()
    if not is_there:
        raise ConfigError(
            f"{name} must save its part of checkpoints in {checkpoint.path or job.run_dir}, but its machine, "
            f"{socket.gethostname()}, has no such folder; set checkpoint.path to a URI that all reach, such as "
            "s3://bucket/folder, or save nothing (checkpoint.at_end=false and checkpoint.every_minutes=null)"
        )


def share_arrays(loop: Loop, coordinator: str, run: Run) -> None:
    """Make a replica's loop pass large arrays in shared memory to peers on its machine, if the run allows it."""
    if not run.cluster.passes_arrays_in_memory or not (coordinator.startswith("ipc://") or is_remote(coordinator)):
        return
    memory = share_memory()
    if memory is None:
        log.warning("this system shares no memory between processes; arrays go through Unix sockets")
    loop.share(memory)
