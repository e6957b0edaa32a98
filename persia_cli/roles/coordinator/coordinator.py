"""The coordinator: gathers the roles, deals out work, walks through the phases, and keeps the record."""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import tracker_of
from persia_cli.control.membership import Membership, RunningClock, StallDetector
from persia_cli.control.phases import PendingRequests
from persia_cli.control.position import EVAL, TRAIN, StepGrid
from persia_cli.errors import DiskError, PersiaError, RoleError, UserError
from persia_cli.observe.journal import EVENTS, METRICS, Journal
from persia_cli.observe.record import RunRecord
from persia_cli.observe.record_state import load_state
from persia_cli.observe.usage import cpu_seconds, resident_bytes
from persia_cli.plan.columns import label_names, metric_aims
from persia_cli.plan.job import Job, job_phases, participants
from persia_cli.roles.coordinator.checkpointing import Checkpointing, restore_tracker
from persia_cli.roles.coordinator.files import FileHandler
from persia_cli.roles.coordinator.heartbeats import HeartbeatHandler
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.liveness import LivenessMonitor
from persia_cli.roles.coordinator.loading import Loading
from persia_cli.roles.coordinator.progression import Progression
from persia_cli.roles.coordinator.readiness import Readiness
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.recovery import RecoveryHandler
from persia_cli.roles.coordinator.rendezvous import RendezvousStore
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.shutdown import AT_ONCE_S, ReplicaError, Shutdown
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.storage.places import place_of
from persia_cli.storage.remote import within
from persia_cli.store.checkpoints.manifest import read_manifest
from persia_cli.wire.figures import ReplicaFigures
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
)
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

if TYPE_CHECKING:
    from persia_cli.roles.coordinator.scoring import Scoring

log = logging.getLogger(__name__)

STORE_PART = 0.6
"""Part of `cluster.silence_timeout_s` for which a request may wait for a store: others must not take this for dead."""


class Coordinator:
    """Holds one job together; every method runs on the poll loop's thread."""

    def __init__(
        self,
        loop: Loop,
        bind: str,
        run: Run,
        job: Job,
        advertise: str | None = None,
    ) -> None:
        """Listen at `bind`. Raises UserError if another process coordinates the run."""
        self._awake = RunningClock(time.monotonic())
        self._loop, self._run, self._job, self._run_dir = loop, run, job, Path(job.run_dir)
        self._events = Journal(self._run_dir / EVENTS, alone=True)
        with ExitStack() as on_failure:
            on_failure.callback(self._events.close)
            self._events.write(event="began", host=socket.gethostname(), pid=os.getpid())
            self._begin(bind, on_failure)
            on_failure.pop_all()
        self.address = advertise or self._server.address

    def _begin(self, bind: str, on_failure: ExitStack) -> None:
        run, job = self._run, self._job
        rows, size = {TRAIN: job.train_rows, EVAL: job.eval_rows}, run.train.batch_size
        self._grids = {split: StepGrid(number, size, run.cluster.nn_workers) for split, number in rows.items()}
        self._begin_record(on_failure)
        self._stall = StallDetector()
        self._liveness = LivenessMonitor(run.cluster, self._membership, self._phases, self._stall, self._now())
        self._failure: ReplicaError | None = None
        self.stop, self.stopped_by = False, ""
        self._scoring = self._begin_scoring() if job.task == "predict" else None
        self._server = self._loop.serve(bind, Report.LIMIT.nbytes)
        self._begin_handlers()
        self._register_handlers()

    def _begin_record(self, on_failure: ExitStack) -> None:
        """Begin the record, and know what the checkpoint says with which the job begins."""
        run, job = self._run, self._job
        self._metrics = on_failure.enter_context(closing(Journal(self._run_dir / METRICS)))
        loaded = read_manifest(place_of(job.load)) if job.load else None
        self._first_step: int
        self._first_step, samples = (loaded.step, loaded.samples) if loaded else (0, 0)
        self._loading = Loading(run, job, loaded, self._events)
        resumed = loaded if job.task == "train" else None
        state = load_state(place_of(job.load), resumed, len(label_names(run))) if resumed and job.load else None
        self._record = RunRecord(
            self._run_dir,
            self._events,
            run,
            self._grids[TRAIN],
            self._first_step,
            samples,
            state,
            self._metrics,
            job.scored_part,
        )
        self._tracker = tracker_of(run, metric_aims(run))
        if resumed:
            restore_tracker(self._tracker, resumed.progress)
        self._checkpointing = Checkpointing(run, job, self._tracker)
        self._membership, self._wishes = Membership(participants(run, job)), PendingRequests()
        is_saved = bool(resumed and self._checkpointing.has(self._first_step))
        self._phases = job_phases(run, job, self._tracker, self._wishes, is_saved)

    def _begin_handlers(self) -> None:
        """Make those that handle requests, each of which knows the others that it needs."""
        run, job = self._run, self._job
        self._joining = JoinHandler(self._server, run, job, self._membership, self._now)
        # fmt: off
        self._reporting = Reporting(
            self._server, self._joining, run, job, self._record, self._events, self._tracker,
        )
        self._work = WorkQueue(self._server, job.first_step, job.steps)
        self._early = SaveRequests(
            self._server, self._joining, run, job, self._phases, self._wishes, self._work, self._events,
            self._now, lambda: self._progression.advance(),
        )
        self.signals = self._early.signals
        self._recordings = Recordings(self._server, self._joining, self._record, job)
        self._dismissal = Shutdown(
            self._server, self._joining, self._membership, self._work, self._now, self._give_up, self._early.end,
            self._recordings,
        )
        self._files = FileHandler(
            self._server, self._joining, self._phases, self._checkpointing, self._early, self._events,
            self._dismissal, lambda: self._progression.go_on(),
        )
        self._progression = Progression(
            self._server, self._joining, job, self._phases, self._grids[TRAIN], self._first_step, self._record,
            self._events, self._checkpointing, self._reporting, self._work, self._early, self._dismissal, self._stall,
            self._scoring, lambda: self._failure is not None, lambda *told: self._recovery.note_figures(*told),
        )
        self._recovery = RecoveryHandler(
            self._server, run, self._phases, self._events, self._dismissal, self._files.lose
        )
        self._joining.judge_gone = self._recovery.judge_gone
        self._readiness = Readiness(
            self._server, self._joining, self._membership, self._events, self._loading,
            self._now, self._give_up, self._progression.advance, self._recovery.on_ready, job.rollback,
        )
        self._heartbeats = HeartbeatHandler(
            self._server, self._joining, self._record, self._phases, self._liveness, self._loading, self._reporting,
            self._recovery, self._dismissal, self._events, self._now,
        )
        # fmt: on

    def _register_handlers(self) -> None:
        handlers: dict[type[Message], Callable[[Peer, Any], None]] = {
            Hello: self._joining.on_hello,
            Ready: self._readiness.on_ready,
            Next: self._on_next,
            Held: self._early.on_held,
            SaveNow: self._early.on_save_now,
            Done: self._progression.on_done,
            Saved: self._files.on_saved,
            TakeItem: self._on_take_item,
            Report: self._reporting.on_report,
            Heartbeat: self._heartbeats.on_heartbeat,
            Fail: self._dismissal.on_fail,
            Leave: self._dismissal.on_leave,
            Death: self._recovery.on_death,
            Recorded: self._recordings.on_recorded,
            StoreCall: RendezvousStore(self._server, self._joining).on_call,
        }
        if self._scoring is not None:
            handlers[Scores] = self._on_scores
        for kind, handler in handlers.items():
            self._server.on(kind, partial(self._handle, handler))

    def _handle(self, handler: Callable[[Peer, Any], None], peer: Peer, message: Message) -> None:
        """Handle a request."""
        with within(STORE_PART * self._run.cluster.silence_timeout_s):
            handler(peer, message)

    def _begin_scoring(self) -> "Scoring":
        from persia_cli.roles.coordinator.scoring import Scoring  # no other job has its coordinator open files of data

        return Scoring(self._run, self._job)

    def run(self) -> None:
        """Hold the job together until its end; raises ReplicaError if a replica failed, RoleError if one is missing."""
        try:
            while not self._progression.over and not self.stop and self._failure is None and self._early.reason is None:
                with self._or_give_up():
                    self._loop.poll(0.2)
                    self._events.require_there()
                    self._heartbeats.tell_progress()
                    self._joining.tick()
                    self._early.tick()
                    self._watch()
            if not self._progression.over:
                self._end_early()
            with self._or_give_up():
                used = resident_bytes() + self._loop.shared_bytes
                self._record.note("coordinator-0", ReplicaFigures(cpu_seconds(), used, self._loop.counters))
                self._record.write_roles()
            if self._progression.over and self._failure is None and not self._phases.is_cut:
                self._checkpointing.complete_record()
            if self._failure is not None:
                raise self._failure
        except ReplicaError:
            raise
        except Exception as error:
            # The others must not wait for a coordinator that has gone.
            said = str(error) if isinstance(error, PersiaError) else f"internal error: {type(error).__name__}: {error}"
            self._give_up(f"coordinator-0: {said}")
            self._dismiss(f"coordinator-0: {said}")
            raise
        finally:
            if self._scoring is not None:
                self._scoring.discard()
            self._record.close()
            self._events.close()

    def _now(self) -> float:
        """Return the seconds in which this coordinator has run."""
        return self._awake.at(time.monotonic())

    @contextmanager
    def _or_give_up(self) -> Iterator[None]:
        """Give the job up for what the user has to put right, such as a full disk."""
        try:
            yield
        except UserError as error:
            self._give_up(str(error), error.exit_code)

    def _watch(self) -> None:
        """Give the job up if a replica is late, silent or stuck; once all is done, wait for such a one no longer."""
        if complaint := self._liveness.complaint(self._now()):
            self._give_up(complaint)
        elif (phase := self._phases.current) is not None and phase.kind == "done":
            for member in self._liveness.silent(self._now()):
                self._progression.finish_without(member.name)

    def _give_up(self, text: str, exit_code: int = RoleError.exit_code) -> None:
        if self._early.signal and exit_code != UserError.exit_code:
            # Who sends signals to one process of a job, then kills others: that is one end, and no failure.
            self._early.reason = self._early.reason or text
        elif self._failure is None:
            self._failure = ReplicaError(text, exit_code)
            try:
                self._events.write(event="phase", phase="failed", error=text, exit_code=exit_code)
            except DiskError as error:
                log.error("the record does not say why the job failed: %s", error)

    def _end_early(self) -> None:
        """Record that the job was stopped, unless it has failed, and send everybody away."""
        why = f"coordinator-0 was stopped ({self.stopped_by})" if self.stopped_by else "it was stopped"
        if self._failure is None:
            with self._or_give_up():
                self._early.note_stopped(self._progression.steps_trained)
        self._dismiss(str(self._failure or why))

    @property
    def goes_on(self) -> bool:
        """True if a signal ended the job before all was done."""
        return bool(self._early.signal) and not self._failure and (not self._progression.over or self._phases.is_cut)

    def _dismiss(self, why: str) -> None:
        """Send everybody away; half of what a stop may take is left for the end of this process."""

        def poll() -> None:
            with self._or_give_up():
                self._loop.poll(0.1)

        seconds = min(self._run.cluster.stop_timeout_s / 2, AT_ONCE_S if self._early.signal else math.inf)
        self._early.answer("", f"the job ends: {why}")
        self._dismissal.send_away(why, self._phases.number + 1, seconds, poll, self.goes_on)

    def _on_next(self, peer: Peer, message: Next) -> None:
        self._work.ask(self._joining.find(message.sender).name, peer, message.after)

    def _on_take_item(self, peer: Peer, message: TakeItem) -> None:
        self._work.take(self._joining.find(message.sender, only="data-loader").name, peer, message)

    def _on_scores(self, peer: Peer, message: Scores) -> None:
        assert self._scoring is not None
        self._scoring.add(self._joining.find(message.sender, only="nn-worker").index, message.batch, message.logits)
        self._server.reply(peer, Ack())
