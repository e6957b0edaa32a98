"""The coordinator: gathers the roles, deals out work, walks through the phases, and keeps the record."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from persia_cli.config.schema import Run
from persia_cli.control.judge import judge_of
from persia_cli.control.membership import Membership
from persia_cli.control.movement import Movement
from persia_cli.control.phases import Phase
from persia_cli.control.position import StepGrid
from persia_cli.control.splits import EVAL, TRAIN
from persia_cli.errors import CheckpointError, PersiaError, RoleError, UserError
from persia_cli.observe.journal import EVENTS, Journal
from persia_cli.observe.pace import Pace
from persia_cli.observe.record import RunRecord
from persia_cli.observe.usage import cpu_seconds, resident_bytes
from persia_cli.plan.columns import metric_aims
from persia_cli.plan.job import Job
from persia_cli.plan.phases import job_phases, participants
from persia_cli.roles.checkpointing import Checkpointing
from persia_cli.roles.dealing import Dealing
from persia_cli.roles.reception import Reception
from persia_cli.roles.vigil import Vigil
from persia_cli.store.manifest import read_manifest
from persia_cli.wire.loop import Loop
from persia_cli.wire.messages import (
    Ack,
    Beat,
    Done,
    Fail,
    Heartbeat,
    Hello,
    Instruction,
    Message,
    Next,
    Ready,
    Report,
    Scores,
    TakeItem,
)
from persia_cli.wire.server import Handler, Peer

if TYPE_CHECKING:
    from persia_cli.roles.scoring import Scoring

Array = np.ndarray[Any, Any]


class ReplicaError(PersiaError):
    """The job ended because of this error of a replica."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Coordinator:
    """Holds one job together; every method runs on the poll loop's thread."""

    def __init__(self, loop: Loop, bind: str, run: Run, job: Job, advertise: str | None = None) -> None:
        self._loop = loop
        self._run = run
        self._job = job
        self._run_dir = Path(job.run_dir)
        self._events = Journal(self._run_dir / EVENTS)
        self._grids = {
            TRAIN: StepGrid(job.train_rows, run.train.batch_size, run.cluster.nn_workers),
            EVAL: StepGrid(job.eval_rows, run.train.batch_size, run.cluster.nn_workers),
        }
        loaded = read_manifest(Path(job.load)) if job.load else None
        self._step = loaded.step if loaded else 0
        samples = loaded.samples if loaded else 0
        self._record = RunRecord(self._run_dir, self._events, run, self._grids[TRAIN], self._step, samples)
        self._membership = Membership(participants(run, job))
        self._judge = judge_of(run, metric_aims(run))
        self._phases = job_phases(run, job, self._judge)
        self._checkpointing = Checkpointing(run, self._run_dir)
        self._movement = Movement()
        self._vigil = Vigil(run.cluster, self._membership, self._phases, self._movement, time.monotonic())
        self._pace = Pace(job.eval_rows, time.monotonic())
        self._parameters = 0
        self._failure: ReplicaError | None = None
        self._told: set[str] = set()
        self._over = False
        self.stop = False
        handlers: dict[type[Message], Handler] = {}
        self._server = loop.serve(bind, handlers)
        self._reception = Reception(self._server, run, job, self._membership)
        self._dealing = Dealing(self._server, job.steps)
        handlers |= {
            Hello: self._reception.on_hello,
            Ready: self._on_ready,
            Next: self._on_next,
            Done: self._on_done,
            TakeItem: self._on_take_item,
            Report: self._on_report,
            Heartbeat: self._on_heartbeat,
            Fail: self._on_fail,
        }
        self._scoring = self._begin_scoring() if job.task == "predict" else None
        if self._scoring is not None:
            handlers[Scores] = self._on_scores
        self.address = advertise or self._server.address

    def _begin_scoring(self) -> "Scoring":
        from persia_cli.roles.scoring import Scoring  # no other job has its coordinator open files of data

        return Scoring(self._run, self._job)

    def run(self) -> None:
        """Hold the job together until its end; raises ReplicaError if a replica failed, RoleError if one is missing."""
        try:
            while not self._over and not self.stop and self._failure is None:
                self._loop.poll(0.2)
                self._tell_progress()
                self._watch()
            if self.stop and not self._over and self._failure is None:
                self._events.write(event="phase", phase="stopped", step=max(self._step, self._record.step))
            self._record.note("coordinator-0", self._figures())
            self._record.write_roles()
            if self._failure is not None:
                self._dismiss(self._run.cluster.stop_timeout_s)
                raise self._failure
        finally:
            if self._scoring is not None:
                self._scoring.discard()
            self._record.close()
            self._events.close()

    def _figures(self) -> dict[str, Any]:
        memory = resident_bytes() + self._loop.shared_bytes
        return {"cpu_s": cpu_seconds(), "rss": memory, "messages": self._loop.counters}

    def _watch(self) -> None:
        """Give the job up if a replica is late, silent or stuck; once all is done, wait for such a one no longer."""
        now = time.monotonic()
        if complaint := self._vigil.complaint(now):
            self._give_up(complaint)
        elif (phase := self._phases.current) is not None and phase.kind == "done":
            for member in self._vigil.silent(now):
                self._over |= self._phases.finish(member.name, self._phases.number)

    def _give_up(self, text: str, exit_code: int = RoleError.exit_code) -> None:
        if self._failure is None:
            self._failure = ReplicaError(text, exit_code)
            self._events.write(event="phase", phase="failed", error=text, exit_code=exit_code)

    def _dismiss(self, limit_s: float) -> None:
        """Tell every replica to stop: those that wait for the others to join at once, all others as they next beat."""
        self._told.update(self._reception.close(f"the job has ended: {self._failure}"))
        deadline = time.monotonic() + limit_s
        silent = self._membership.silent(time.monotonic(), self._run.cluster.silence_timeout_s)
        listening = {m.name for m in self._membership.members.values()} - {m.name for m in silent}
        while not listening <= self._told and time.monotonic() < deadline:
            self._loop.poll(0.1)

    # Phases

    def _on_ready(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, Ready)
        self._reception.find(message.sender).ready = True
        self._parameters = max(self._parameters, message.parameters)
        self._server.reply(peer, Ack())
        if not self._membership.unready and self._phases.current is None:
            now = time.monotonic()
            for member in self._membership.members.values():
                member.last_seen_s = now
            self._events.write(event="ready", parameters=self._parameters, replicas=self._reception.replicas())
            self._advance()

    def _advance(self) -> None:
        phase = self._phases.advance()
        self._events.write(event="phase", phase=phase.kind, step=self._step)
        begin: dict[str, Callable[[Phase], dict[str, Any]]] = {
            "training": self._begin_training,
            "evaluating": self._begin_evaluating,
            "predicting": self._begin_evaluating,
            "saving": self._begin_saving,
            "paused": lambda phase: {"step": phase.last},
            "done": lambda phase: {},
        }
        body = begin[phase.kind](phase)
        kind = "stop" if phase.kind == "done" else phase.kind
        self._movement.restart(time.monotonic())
        self._dealing.instruct(Instruction(self._phases.number, kind, body))

    def _begin_training(self, phase: Phase) -> dict[str, Any]:
        self._record.begin_phase()
        return {"first": phase.first, "last": phase.last}

    def _begin_evaluating(self, phase: Phase) -> dict[str, Any]:
        self._record.begin_phase()
        self._pace = Pace(self._job.eval_rows, time.monotonic())
        self._dealing.evaluate(phase.first, phase.last)
        return {"first": phase.first, "last": phase.last}

    def _begin_saving(self, phase: Phase) -> dict[str, Any]:
        return {"folder": str(self._checkpointing.begin(phase.last)), "step": phase.last}

    def _on_done(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, Done)
        member = self._reception.find(message.sender)
        if "files" in message.body:
            self._checkpointing.add(member.name, message.body["files"])
        if "cpu_s" in message.body:
            self._record.note(member.name, message.body)
        self._server.reply(peer, Ack())
        phase = self._phases.current
        if phase is None or not self._phases.finish(member.name, message.number):
            return
        if phase.kind == "done":
            self._over = True
            return
        if phase.kind == "training":
            self._step = phase.last
        elif phase.kind == "saving":
            self._publish(phase.last)
        elif phase.kind == "predicting":
            self._publish_scores()
        if self._failure is None:
            self._advance()

    def _publish(self, step: int) -> None:
        try:
            samples = self._grids[TRAIN].samples_before(step)
            saved = self._checkpointing.publish(step, samples, self._judge.kept_at(step))
        except CheckpointError as error:
            self._give_up(str(error), error.exit_code)
        else:
            self._events.write(event="saved", **saved)

    def _publish_scores(self) -> None:
        assert self._scoring is not None
        try:
            self._events.write(event="scored", **self._scoring.publish())
        except UserError as error:
            self._give_up(str(error), error.exit_code)

    # Instructions and work items

    def _on_next(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, Next)
        member = self._reception.find(message.sender)
        self._dealing.ask(member.name, peer, message.after)

    def _on_take_item(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, TakeItem)
        member = self._reception.find(message.sender, only="data-loader")
        self._dealing.take(member.name, peer, message)

    # Figures and failures

    def _on_report(self, peer: Peer, message: Message, arrays: list[Array]) -> None:
        assert isinstance(message, Report)
        member = self._reception.find(message.sender, only="nn-worker")
        evaluated = self._record.add_report(member.index, message.number, message.body, arrays)
        self._server.reply(peer, Ack())
        if self._job.task == "train":
            for line in evaluated:
                self._judge_by(line)

    def _judge_by(self, line: dict[str, Any]) -> None:
        """Let an evaluation decide how training goes on; each rank says that it is done only once this is known."""
        if self._judge.note(line["step"], line) and (best := self._judge.best) is not None:
            self._events.write(event="best", metric=best.metric, step=best.step, value=best.value)
        if self._judge.over and self._step < self._job.steps:
            text = f"training ends early, at step {self._step}: {self._judge.reason}"
            self._events.write(event="stopped_early", step=self._step, text=text)

    def _on_scores(self, peer: Peer, message: Message, arrays: list[Array]) -> None:
        assert isinstance(message, Scores)
        assert self._scoring is not None
        member = self._reception.find(message.sender, only="nn-worker")
        try:
            self._scoring.add(member.index, message.batch, arrays[0])
        except UserError as error:
            self._give_up(str(error), error.exit_code)
        else:
            self._server.reply(peer, Ack())

    def _tell_progress(self) -> None:
        """Say now and then how far an evaluation or a prediction has come."""
        phase = self._phases.current
        if phase is not None and phase.kind in ("evaluating", "predicting"):
            steps = max(self._record.steps_scored - phase.first, 0)
            rows = min(steps * self._run.train.batch_size, self._job.eval_rows)
            if line := self._pace.line(rows, time.monotonic()):
                self._events.write(event="progress", **line)

    def _on_heartbeat(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, Heartbeat)
        member = self._reception.find(message.sender)
        member.progress_age_s = message.progress_age_s
        self._record.note(member.name, {"cpu_s": message.cpu_s, "rss": message.rss} | message.body)
        moving = {key: figures for key, figures in message.body.items() if key != "messages"}
        self._movement.note(member.name, moving, time.monotonic())
        failed = self._failure is not None
        self._server.reply(peer, Beat(stop=failed))
        if failed:
            self._told.add(member.name)

    def _on_fail(self, peer: Peer, message: Message, _: list[Array]) -> None:
        assert isinstance(message, Fail)
        member = self._reception.find(message.sender)
        self._server.reply(peer, Ack())
        self._told.add(member.name)
        self._give_up(f"{member.name}: {message.error}", message.exit_code)
