"""The coordinator: admits replicas, assigns work, runs the phases, and writes the record."""

import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persia_cli.config.schema import Run
from persia_cli.control.membership import RunningClock
from persia_cli.control.position import StepGrid
from persia_cli.errors import PersiaError, UserError
from persia_cli.loggers.process import Loggers, names_of
from persia_cli.observe.journal import EVENTS, METRICS, Journal, read_journal
from persia_cli.observe.moment import MOMENT
from persia_cli.observe.record import RunRecord
from persia_cli.observe.record_state import load_state
from persia_cli.plan.columns import label_names
from persia_cli.plan.evaluations import tracker_of
from persia_cli.plan.job import COORDINATOR, Job
from persia_cli.roles.coordinator.checkpointing import Checkpointing, restore_tracker
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.heartbeats import Heartbeats
from persia_cli.roles.coordinator.joining import Joining
from persia_cli.roles.coordinator.moment import moment_of
from persia_cli.roles.coordinator.progression import Progression
from persia_cli.roles.coordinator.readiness import Loading, Readiness
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.rendezvous import RendezvousStore
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.roles.coordinator.reporting import Reporting
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.shutdown import AT_ONCE_S, Shutdown
from persia_cli.roles.session import usage_of
from persia_cli.storage.locations import location_of
from persia_cli.store.checkpoints.manifest import read_manifest
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
from persia_cli.wire.loop import Loop
from persia_cli.wire.message import Message
from persia_cli.wire.messages import Ack
from persia_cli.wire.reports import Counters
from persia_cli.wire.server import Peer

if TYPE_CHECKING:
    from persia_cli.roles.coordinator.scoring import Scoring

log = logging.getLogger(__name__)

NAME = f"{COORDINATOR}-0"
LOOK_S = 1.0
"""Seconds between two checks that the record still exists, and between two files with the present state."""


class Coordinator:
    """The components of one job's coordinator, and the loop that drives them.

    A message changes the state of the `JobContext`; then `tick` of each component does what has become due. All of
    this runs on the poll loop's thread, and only the context's disk worker waits for disks and stores.
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
        self._loop, self._run, self._run_dir = loop, run, Path(job.run_dir)
        self._clock = RunningClock(time.monotonic())
        self._events = Journal(self._run_dir / EVENTS, alone=True)
        self.stop, self.stopped_by = False, ""
        with ExitStack() as on_failure:
            on_failure.callback(self._events.close)
            self._events.write(event="began", host=socket.gethostname(), pid=os.getpid())
            self._build(job, bind, on_failure)
            on_failure.pop_all()
        self.address = advertise or self._server.address

    def _build(self, job: Job, bind: str, on_failure: ExitStack) -> None:
        """Create the record, the context and the components."""
        # A replica that can connect expects answers, so all slow reads of checkpoints come before `serve`.
        run, events = self._run, self._events
        grid = StepGrid(job.train_rows, run.train.batch, run.cluster.nn_workers)
        metrics = on_failure.enter_context(closing(Journal(self._run_dir / METRICS)))
        loaded = read_manifest(location_of(job.load)) if job.load else None
        step, samples = (loaded.step, loaded.samples) if loaded else (0, 0)
        loading = Loading(run, job, loaded, events)
        resumed = loaded if job.task == "train" else None
        tasks = len(label_names(run))
        state = load_state(location_of(job.load), resumed, tasks) if resumed and job.load else None
        self._record = RunRecord(
            *(self._run_dir, events, run, grid, step, samples, state, metrics),
            scored_part=job.scored_part,
            calibrates=job.task == "train" and run.train.calibrate == "auto",
        )
        tracker = tracker_of(run)
        if resumed:
            restore_tracker(tracker, resumed.progress)
        self._checkpointing = Checkpointing(run, job, tracker)
        if resumed and (best := self._checkpointing.seed_best(read_journal(self._run_dir / METRICS))):
            events.write(event="best", metric=best.metric, step=best.step, value=best.value)
        self._scoring = self._begin_scoring(job) if job.task == "predict" else None
        is_saved = bool(resumed and self._checkpointing.has(step))
        waker = self._loop.waker()
        self._server = self._loop.serve(bind, Report.LIMIT.nbytes)
        self._context = context = JobContext(
            self._server,
            run,
            job,
            events=events,
            record=self._record,
            tracker=tracker,
            now=self._now,
            wake=waker.wake,
            is_saved=is_saved,
        )
        on_failure.callback(context.disk.close)
        self._save_requests = SaveRequests(context, str(location_of(job.load)) if is_saved and job.load else "")
        self.signals = self._save_requests.signals
        saving = Saving(context, self._checkpointing, self._save_requests)
        replacements = Replacements(context, saving)
        self._joining = Joining(context, replacements)
        recordings = Recordings(context)
        self._shutdown = Shutdown(context, self._joining, self._save_requests, recordings)
        reporting = Reporting(context)
        self._heartbeats = Heartbeats(context, loading, replacements)
        self._progression = Progression(
            context, grid, step, saving, self._save_requests, reporting, replacements, self._scoring
        )
        handlers: dict[type[Message], Callable[[Peer, Any], None]] = {
            Hello: self._joining.on_hello,
            Ready: Readiness(context, loading, replacements).on_ready,
            Next: self._on_next,
            Held: self._save_requests.on_held,
            SaveNow: self._save_requests.on_save_now,
            Unreadable: self._save_requests.on_unreadable,
            Done: self._progression.on_done,
            Saved: saving.on_saved,
            TakeItem: self._on_take_item,
            Report: reporting.on_report,
            Heartbeat: self._heartbeats.on_heartbeat,
            Fail: self._shutdown.on_fail,
            Leave: self._shutdown.on_leave,
            Death: replacements.on_death,
            Recorded: recordings.on_recorded,
            StoreCall: RendezvousStore(context).on_call,
        }
        if self._scoring is not None:
            handlers[Scores] = self._on_scores
        for kind, handler in handlers.items():
            self._server.on(kind, handler)
        self._loop.every(LOOK_S, self._look_at_record)
        self._loggers = Loggers(run, self._run_dir) if job.task == "train" and names_of(run) else None

    def _look_at_record(self) -> None:
        """Abort the job if its record was removed, since all further lines would be lost; write the present state.

        Write lines that wait for space on the disk, and warn of loggers that have failed.
        """
        if not self._context.disk.is_idle:
            return
        self._note_own_usage()
        text = json.dumps(moment_of(self._context))

        def look() -> list[str]:
            self._events.require_there()
            self._events.flush()
            self._record.flush()
            with suppress(OSError):  # nothing depends on this file
                (self._run_dir / MOMENT).write_text(text)
            return self._loggers.failures() if self._loggers is not None else []

        self._context.disk.run("looking at the record", look, self._warn)

    def _warn(self, texts: list[str]) -> None:
        for text in texts:
            self._events.write(event="warning", text=text)

    def _begin_scoring(self, job: Job) -> "Scoring":
        from persia_cli.roles.coordinator.scoring import Scoring  # only a prediction reads data here

        return Scoring(self._run, job)

    def run(self) -> None:
        """Run the job to its end; raise ReplicaError if a replica failed, RoleError if one is missing."""
        context = self._context
        try:
            while not self.stop and not context.is_over and context.failure is None and context.stop_reason is None:
                self._tick(0.2)
            if not context.is_over:
                self._end_early()
            with self._or_abort():
                self._write_roles()
                if context.is_over and context.failure is None and not context.phases.is_cut:
                    self._checkpointing.complete_record()
            if context.failure is not None:
                raise context.failure
        except Exception as error:
            if error is not context.failure:
                self._report(error)
            raise
        finally:
            if self._scoring is not None:
                context.disk.run("removing the scores", self._scoring.discard)
            self._finish_disk_work()
            with suppress(OSError):
                (self._run_dir / MOMENT).unlink(missing_ok=True)  # the record has the final state
            with closing(self._events):
                self._record.close()

    def _finish_disk_work(self) -> None:
        """Record the results of tasks that the disk worker still completes, such as publishing a checkpoint.

        Let the loggers send their last lines, for a short time after a failure or a signal.
        """
        context, limit_s = self._context, self._run.cluster.stop_timeout_s
        context.disk.close(limit_s / 4)
        is_done = context.is_over and not context.failure and not context.ending
        try:
            context.disk.tick()
            if self._loggers is not None:
                self._warn(self._loggers.close(limit_s if is_done else limit_s / 4))
        except (PersiaError, OSError) as error:
            log.error("work on a disk failed after the end of the job: %s", error)

    def _tick(self, timeout_s: float) -> None:
        """Handle the messages of one round, then do what has become due."""
        with self._or_abort():
            self._loop.poll(timeout_s)
            self._context.disk.tick()
            self._joining.tick()
            self._save_requests.tick()
            self._progression.tick()
            self._heartbeats.tick()

    def _report(self, error: Exception) -> None:
        """End all replicas because of an error of the coordinator, since they must not wait for it."""
        text = str(error) if isinstance(error, PersiaError) else f"internal error: {type(error).__name__}: {error}"
        self._context.abort(f"{NAME}: {text}")
        self._stop_replicas(f"{NAME}: {text}")

    def _write_roles(self) -> None:
        self._note_own_usage()
        self._record.write_roles()

    def _note_own_usage(self) -> None:
        self._record.note(NAME, usage_of(self._loop, Counters(), self._now(), self._loop.idle_s))

    def _now(self) -> float:
        """Return the seconds for which this coordinator has run."""
        return self._clock.at(time.monotonic())

    @contextmanager
    def _or_abort(self) -> Iterator[None]:
        """Abort the job on an error that the user can correct, such as a full disk."""
        try:
            yield
        except UserError as error:
            self._context.abort(str(error), error.exit_code)

    def _end_early(self) -> None:
        """Record that the job was stopped, unless it failed, and stop all replicas."""
        failure = self._context.failure
        if failure is None:
            with self._or_abort():
                self._save_requests.note_stopped(self._progression.steps_trained)
        stopped = f"{NAME} was stopped ({self.stopped_by})" if self.stopped_by else "it was stopped"
        self._stop_replicas(str(self._context.failure or stopped))

    def _stop_replicas(self, why: str) -> None:
        """Stop all replicas."""

        def poll() -> None:
            with self._or_abort():
                self._loop.poll(0.1)
                self._context.disk.tick()

        # The other half of the time is left for the end of this process.
        seconds = min(self._run.cluster.stop_timeout_s / 2, AT_ONCE_S if self._context.ending else math.inf)
        self._save_requests.answer("", f"the job ends: {why}")
        self._shutdown.stop_replicas(why, seconds, poll, self.goes_on)

    @property
    def goes_on(self) -> bool:
        """True if a signal ended the job before all was done."""
        context = self._context
        return bool(context.ending) and not context.failure and (not context.is_over or context.phases.is_cut)

    def _on_next(self, peer: Peer, message: Next) -> None:
        self._context.work.ask(self._context.find(message.sender).name, peer, message.after)

    def _on_take_item(self, peer: Peer, message: TakeItem) -> None:
        self._context.work.take(self._context.find(message.sender, only="data-loader").name, peer, message)

    def _on_scores(self, peer: Peer, message: Scores) -> None:
        scoring, rank = self._scoring, self._context.find(message.sender, only="nn-worker").index
        assert scoring is not None
        scoring.check(rank, message.batch, message.logits)

        def add() -> None:
            scoring.add(message.batch, message.logits)

        self._context.disk.run("writing scores", add, lambda _: self._context.reply(peer, Ack()))
