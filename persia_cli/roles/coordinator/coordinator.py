"""The coordinator's edge: it passes events to the state machine, and carries the effects out."""

import json
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.membership import RunningClock
from persia_cli.control.phases import PendingRequests
from persia_cli.control.portions import Portions
from persia_cli.control.position import StepGrid
from persia_cli.errors import PersiaError, RoleError, UserError, WireError
from persia_cli.loggers.process import Loggers, names_of
from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.observe.live_state import LIVE_STATE
from persia_cli.observe.record import RunRecord
from persia_cli.observe.record_state import RecordState, load_state
from persia_cli.observe.recordings import remove_recordings
from persia_cli.plan.columns import label_names
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.evaluations import tracker_of
from persia_cli.plan.job import COORDINATOR, Job, job_phases, participants
from persia_cli.plan.warm_start import WarmStart
from persia_cli.roles.coordinator.checkpoint_folders import Checkpoints
from persia_cli.roles.coordinator.machine import CoordinatorMachine
from persia_cli.roles.coordinator.progress import restore_tracker
from persia_cli.roles.coordinator.publisher_process import PublisherProcess
from persia_cli.roles.coordinator.record import TraceFiles
from persia_cli.roles.coordinator.state import (
    AddScores,
    Arrived,
    BeginCheckpoint,
    Effect,
    EndReached,
    Event,
    Failed,
    FindPortion,
    JobOrigin,
    JobState,
    JournalLines,
    Kill,
    PublishCheckpoint,
    PublishScores,
    Reply,
    Signalled,
    Start,
    Task,
    TaskEnded,
    TimePassed,
    UsageMeasured,
    Write,
    WriteTrace,
)
from persia_cli.roles.session import usage_of
from persia_cli.roles.task_thread import TaskThread
from persia_cli.storage.locations import location_of
from persia_cli.storage.remote import within, without_secret
from persia_cli.store.checkpoints.manifest import Manifest, read_manifest
from persia_cli.wire.job_messages import Beat, Counters
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Message
from persia_cli.wire.process import kill, this_process
from persia_cli.wire.server import Peer

if TYPE_CHECKING:
    from persia_cli.roles.coordinator.scoring import Scoring

log = logging.getLogger(__name__)

NAME = f"{COORDINATOR}-0"
LOOK_S = 1.0
"""Seconds between two checks that the record still exists, and between two files with the present state."""
AT_ONCE_S = 1.0
"""Maximum number of seconds in which replicas are asked to end after a signal."""
LAST_VERSION_S = 60.0
"""Maximum number of seconds in which the publisher publishes the last version of a job that is done."""
UNKNOWN = {"taken": None, "new": None, "unused": None, "states": None}
"""The comparison of dense weights where the coordinator's machine cannot make it."""


class Coordinator:
    """One job's state machine, the loop that drives it, and all that it touches: sockets, journals, disks, the clock.

    All of this runs on the poll loop's thread; only the disk thread waits for disks and stores.
    """

    def __init__(
        self,
        loop: Loop,
        bind: str,
        run: Run,
        job: Job,
        advertise: str | None = None,
    ) -> None:
        """Listen at `bind`. Raise UserError if another process coordinates the run."""
        self._loop, self._run, self._job, self._run_dir = loop, run, job, Path(job.run_dir)
        self._clock = RunningClock(time.monotonic())
        self._events = Journal(self._run_dir / EVENTS, alone=True)
        self.stop, self.stopped_by = False, ""
        self.signals: deque[str] = deque()
        """Names of signals that this process received; any thread and a signal handler may append one."""
        with ExitStack() as on_failure:
            on_failure.callback(self._events.close)
            self._events.write(event="began", host=socket.gethostname(), pid=os.getpid())
            self._metrics = on_failure.enter_context(closing(Journal(self._run_dir / METRICS)))
            self._journals = {EVENTS: self._events, METRICS: self._metrics}
            # A replica that can connect expects answers, so all slow reads of checkpoints come before `serve`.
            self._machine = self._read()
            self._scoring = self._begin_scoring() if job.task == "predict" else None
            self._disk = TaskThread("disk", loop.waker().wake)
            on_failure.callback(self._disk.close)
            self._server = loop.serve(bind)
            for kind in self._machine.accepted:
                self._server.on(kind, self._on_message)
            loop.every(LOOK_S, self._look_at_record)
            if job.task == "train":
                self._disk.run("removing unfinished checkpoints", self._tidy)
            self._loggers = Loggers(run, self._run_dir) if job.task == "train" and names_of(run) else None
            self._publisher = PublisherProcess(self._run_dir) if job.task == "train" and run.publish else None
            on_failure.pop_all()
        self.address = advertise or self._server.address

    def _read(self) -> CoordinatorMachine:
        """Read the checkpoint from which the job continues, and return the state machine of the job."""
        run, job = self._run, self._job
        loaded = read_manifest(location_of(job.load)) if job.load else None
        step, samples = (loaded.step, loaded.samples) if loaded else (0, 0)
        resumed = loaded if job.task == "train" else None
        state = load_state(location_of(job.load), resumed, len(label_names(run))) if resumed and job.load else None
        tracker = tracker_of(run)
        if resumed:
            restore_tracker(tracker, resumed.progress)
        self._checkpoints = Checkpoints(run, job, lambda: self._metrics.nbytes)
        if resumed and (best := self._checkpoints.seed_best(tracker, read_journal(self._run_dir / METRICS))):
            self._events.write(event="best", metric=best.metric, step=best.step, value=best.value)
        self._best = replace(tracker.kept) if tracker.kept else None
        if job.warm is not None and loaded is None:
            self._events.write(event="warm_start", **as_event(job.warm))
        self._traces = TraceFiles(self._run_dir)
        if job.load is None:
            remove_recordings(self._run_dir)  # of an earlier start of the training
        self._finder = None
        if run.follows is not None and job.task == "train":
            from persia_cli.roles.coordinator.portions import PortionFinder  # needs pyarrow

            self._finder = PortionFinder(run, self._run_dir, step)
        is_saved = bool(resumed and self._checkpoints.has(step))
        origin = JobOrigin(
            this_process(),
            socket.gethostname(),
            saved=str(location_of(job.load)) if is_saved and job.load else "",
            rows=_initial_rows(run, job, loaded),
            rolled_back_s=time.time() - job.rollback.died_at if job.rollback else 0.0,
        )
        return machine_of(run, job, tracker, origin, step, samples, state)

    def _begin_scoring(self) -> "Scoring":
        from persia_cli.roles.coordinator.scoring import Scoring  # only a prediction reads data here

        return Scoring(self._run, self._job)

    def _on_message(self, peer: Peer, message: Message) -> None:
        self._handle(Arrived(self._now(), peer, message))

    def _handle(self, event: Event) -> None:
        self._carry_out(self._machine.handle(event))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out all effects; fail the job if one of them is impossible, as on a full disk."""
        for effect in effects:
            try:
                self._carry_out_one(effect)
            except UserError as error:
                self._fail(str(error), error.exit_code)

    def _fail(self, text: str, exit_code: int) -> None:
        """Fail the job, unless it has failed or its end is recorded."""
        log.error("the coordinator fails: %s", text)
        self._handle(Failed(self._now(), text, exit_code))

    def _carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Reply(peer, message):
                if isinstance(message, Beat):
                    message = Beat(message.stop, message.changes, time.monotonic_ns())
                try:
                    self._server.reply(peer, message)
                except WireError as error:
                    log.error("an answer cannot be sent: %s", error)
                    self._server.refuse(peer, error)
            case Write(journal, fields):
                self._journals[journal].write(**fields)
            case Start(task):
                self._disk.run(task.doing, partial(self._work, task), partial(self._on_task_ended, task))
            case Kill(process, or_else):
                if not kill(process):
                    self._fail(or_else, RoleError.exit_code)

    def _work(self, task: Task) -> Any:
        """Carry out a task, on the disk thread, and return its result."""
        match task:
            case WriteTrace():
                return self._traces.append(task.portion)
            case AddScores():
                assert self._scoring is not None
                try:
                    self._scoring.check(task.rank, task.batch, task.logits)
                except WireError as error:
                    return error
                return self._scoring.add(task.batch, task.logits)
            case PublishScores():
                assert self._scoring is not None
                return self._scoring.publish()
            case FindPortion():
                assert self._finder is not None
                return self._finder.find()
        # A store that hangs costs a save, not the job.
        with within(self._run.cluster.silence_timeout_s):
            match task:
                case BeginCheckpoint():
                    return self._checkpoints.begin(task)
                case PublishCheckpoint():
                    return self._checkpoints.conclude(task)

    def _tidy(self) -> None:
        """Complete or remove what an earlier start of the training left unfinished, on the disk thread."""
        with within(self._run.cluster.silence_timeout_s):
            self._checkpoints.tidy(self._best)

    def _on_task_ended(self, task: Task, result: Any) -> None:
        self._handle(TaskEnded(self._now(), task, result))

    def _look_at_record(self) -> None:
        """Abort the job if its record was removed, since all further lines would be lost; write the present state.

        Write lines that wait for space on the disk, and warn of loggers that have failed.
        """
        if not self._disk.is_idle:
            return
        self._handle(UsageMeasured(self._now(), self._usage()))
        text = json.dumps(live_state(self._machine.state))

        def look() -> list[str]:
            self._events.require_there()
            self._events.flush()
            self._metrics.flush()
            with suppress(OSError):  # nothing depends on this file
                (self._run_dir / LIVE_STATE).write_text(text)
            deaths = self._publisher.look() if self._publisher is not None else []
            return deaths + (self._loggers.failures() if self._loggers is not None else [])

        self._disk.run("looking at the record", look, self._warn)

    def _warn(self, texts: list[str]) -> None:
        for text in texts:
            self._events.write(event="warning", text=text)

    def run(self) -> None:
        """Run the job to its end; raise ReplicaError if a replica failed, RoleError if one is missing."""
        state = self._machine.state
        try:
            while not self.stop and not state.is_over and state.failure is None and state.stop_reason is None:
                self._poll(0.2)
                while self.signals:
                    self._handle(Signalled(self._now(), self.signals.popleft()))
                self._handle(TimePassed(self._now(), *self._disk.age()))
            if not state.is_over:
                stopped = f"{NAME} was stopped ({self.stopped_by})" if self.stopped_by else "it was stopped"
                self._stop_replicas(str(state.failure or stopped))
            self._handle(UsageMeasured(self._now(), self._usage(), is_last=True))
            if state.is_over and state.failure is None and not state.phases.is_cut:
                self._checkpoints.complete_record()
            if state.failure is not None:
                raise state.failure
        except Exception as error:
            if error is not state.failure:
                self._report(error)
            raise
        finally:
            if self._scoring is not None:
                self._disk.run("removing the scores", self._scoring.discard)
            self._finish_disk_work()
            with suppress(OSError):
                (self._run_dir / LIVE_STATE).unlink(missing_ok=True)  # the record has the final state
            with closing(self._events):
                self._metrics.close()

    def _poll(self, timeout_s: float) -> None:
        """Handle the messages and ended tasks of one round; an error that the user can correct fails the job."""
        try:
            self._loop.poll(timeout_s)
            self._disk.tick()
        except UserError as error:
            self._fail(str(error), error.exit_code)

    def _finish_disk_work(self) -> None:
        """Record the results of tasks that the disk thread still completes, such as publishing a checkpoint.

        Let loggers and publisher send what they have, for a short time after a failure or a signal.
        """
        state, limit_s = self._machine.state, self._run.cluster.stop_timeout_s
        self._disk.close(limit_s / 4)
        is_done = state.is_over and not state.failure and not state.ending
        loggers_s = limit_s if is_done else limit_s / 4
        tasks: list[Callable[[], None]] = [self._disk.tick]
        if self._publisher is not None:
            tasks.append(partial(self._close, self._publisher, LAST_VERSION_S if is_done else loggers_s))
        if self._loggers is not None:
            tasks.append(partial(self._close, self._loggers, loggers_s))
        for finish in tasks:
            try:
                finish()
            except (PersiaError, OSError) as error:
                log.error("work on a disk failed after the end of the job: %s", error)

    def _close(self, child: "PublisherProcess | Loggers", seconds: float) -> None:
        self._warn(child.close(seconds))

    def _report(self, error: Exception) -> None:
        """End all replicas because of an error of the coordinator, since they must not wait for it."""
        text = str(error) if isinstance(error, PersiaError) else f"internal error: {type(error).__name__}: {error}"
        self._fail(f"{NAME}: {text}", PersiaError.exit_code)
        self._stop_replicas(f"{NAME}: {text}")

    def _stop_replicas(self, why: str) -> None:
        """Ask all replicas to end, and wait until all of them are informed."""
        state = self._machine.state
        self._handle(EndReached(self._now(), why))
        # The other half of the time is left for the end of this process.
        seconds = min(self._run.cluster.stop_timeout_s / 2, AT_ONCE_S if state.ending else math.inf)
        deadline = self._now() + seconds
        while self._machine.awaited and self._now() < deadline:
            self._poll(0.1)
            self._handle(TimePassed(self._now()))

    def _usage(self) -> Any:
        return usage_of(self._loop, Counters(), self._now(), self._loop.idle_s)

    def _now(self) -> float:
        """Return the seconds for which this coordinator has run."""
        return self._clock.at(time.monotonic())

    @property
    def is_resumable(self) -> bool:
        """True if a signal ended the job before all was done."""
        return self._machine.state.is_resumable


def machine_of(
    run: Run,
    job: Job,
    tracker: EvaluationTracker,
    origin: JobOrigin,
    step: int = 0,
    samples: int = 0,
    state: RecordState | None = None,
) -> CoordinatorMachine:
    """Return the state machine of a job whose model is trained up to `step`, on `samples` samples."""
    effects: list[Effect] = []
    events, requests = JournalLines(effects, EVENTS), PendingRequests()
    portions = None
    if run.follows is not None and job.task == "train":
        portions = Portions(run.train.batch, step, samples)
    grid = portions or StepGrid(job.train_rows, run.train.batch, run.cluster.nn_workers)
    record = RunRecord(
        *(events, JournalLines(effects, METRICS), run, grid, step, samples, state),
        scored_part=job.scored_part,
        calibrates=job.task == "train" and run.train.calibrate == "auto",
    )
    return CoordinatorMachine(
        JobState(
            *(run, job, origin),
            expected=participants(run, job),
            phases=job_phases(run, job, tracker, requests, bool(origin.saved), portions),
            requests=requests,
            effects=effects,
            events=events,
            record=record,
            tracker=tracker,
            grid=grid,
            step=step,
        )
    )


def _initial_rows(run: Run, job: Job, loaded: Manifest | None) -> int:
    """Return the number of rows that servers must load, of a checkpoint as a whole or of `init_from`."""
    if loaded is not None:
        return loaded.row_count(embedding_layout(run).dense_group is not None)
    return job.warm.rows if job.warm is not None else 0


def as_event(warm: WarmStart) -> dict[str, Any]:
    """Return the keys of the event that records the warm start of a run."""
    fit = warm.fit
    return {
        "checkpoint": warm.checkpoint and without_secret(warm.checkpoint),
        "step": warm.step,
        "tables": [
            {"table": table.name, "from": table.source, "rows": table.rows, "states": table.states}
            for table in warm.tables
        ],
        "vectors": [
            {"table": vectors.name, "from": without_secret(vectors.path), "rows": vectors.rows}
            for vectors in warm.vectors
        ],
        "new": list(warm.new),
        "unused": list(warm.unused),
        "dense": (asdict(fit) if fit else UNKNOWN) if warm.dense else None,
    }


def live_state(state: JobState) -> dict[str, Any]:
    """Return the content of the file that `persia_cli.observe.live_state` reads: what each replica does at present."""
    queues = state.record.queues()
    # A process that has been replaced comes before the one in its place.
    roles = {f"{entry['role']}-{entry['index']}": entry for entry in state.record.roles()}
    roles[NAME] |= {"host": socket.gethostname(), "pid": os.getpid()}
    for member in state.membership.members.values():
        roles.setdefault(member.name, {"role": member.role, "index": member.index}).update(
            host=member.host,
            pid=member.process.pid,
            doing="starting again" if member.died else member.doing,
            silent_s=round(state.now - member.last_seen_s, 1),
            queue=queues[member.name],
        )
    phase = state.phases.current
    return {
        "time": time.time(),
        "phase": phase.kind if phase else "starting",
        "behind_s": state.record.behind.get("behind_s"),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1),
        "roles": list(roles.values()),
        "tables": state.record.tables(),
    }
