"""The record of the run: the reports of ranks, which also decide about the end and the learning rate, and traces."""

# Invariants:
#
# - A report is acknowledged only when it is in the record, with those of all ranks; a rank reports its end after that.
# - A portion of a trace is acknowledged when the disk has it or has refused it; a trace is complete with its last one.

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from persia_cli.control.evaluation_tracker import Best, Decision
from persia_cli.control.membership import Member
from persia_cli.errors import WireError
from persia_cli.observe.recordings import PORTIONS, TracePortion, recording_of
from persia_cli.observe.trace import SPANS_LIMIT, clock_name
from persia_cli.roles.coordinator.cuts import CutSchedule
from persia_cli.roles.coordinator.state import JobState, WriteTrace
from persia_cli.wire.job_messages import Recorded, Report
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

log = logging.getLogger(__name__)

EVERY_S = 2.0
"""Seconds between two reports of progress."""

UNDECIDED: dict[Decision, str] = {
    "best": "no checkpoint is selected as the best",
    "stop": "train.stop_early counts it as no better",
    "dense": "the schedule of optimizer.dense counts it as no better",
    "embedding": "the schedule of optimizer.embedding counts it as no better",
}
"""The consequences of an evaluation without the metric that decides, as ends of sentences."""


class Reporting:
    """The reports of all ranks."""

    def __init__(self, state: JobState, cuts: CutSchedule) -> None:
        self._state, self._job, self._cuts = state, state.job, cuts
        self._record, self._events, self._tracker = state.record, state.events, state.tracker
        self._undefined: set[str] = set()
        """Metrics that an evaluation lacked, and of which the user was warned."""
        self._pace = Pace(self._job.eval_rows, self._state.now)
        self._waiting: dict[tuple[int, int], Peer] = {}
        """The peer to answer once a report (rank and number) is in the record."""

    def on_report(self, peer: Peer, message: Report) -> None:
        """Record an interval; the answer comes when those of all ranks are in the record."""
        member = self._state.find(message.sender, only="nn-worker")
        evaluated = self._record.add_report(
            member.index, message.number, message.metrics, message.scores, message.samples
        )
        for line in evaluated:
            if self._job.task == "train":
                self._judge(line)
            self._warn_of_one_class(line)
        self._waiting[member.index, message.number] = peer
        for key in [key for key in self._waiting if self._record.has_written(key[1])]:
            self._state.reply(self._waiting.pop(key), Ack())

    def begin_scoring(self) -> None:
        """Restart the measurement of how fast samples are scored."""
        self._pace = Pace(self._job.eval_rows, self._state.now)

    def report_progress(self) -> None:
        """Record the progress of an evaluation or a prediction, every few seconds."""
        phase = self._state.phases.current
        if phase is None or phase.kind not in ("evaluating", "predicting"):
            return
        steps = max(self._record.steps_scored - phase.first, 0)
        rows = min(steps * self._state.run.train.batch, self._job.eval_rows)
        # When all samples are scored, an evaluation may still rank items.
        if rows < self._job.eval_rows and (line := self._pace.line(rows, self._state.now)):
            self._events.write(event="progress", **line)

    def _judge(self, line: dict[str, Any]) -> None:
        """Decide by a complete evaluation how training continues; a rank reports its end only after this."""
        self._warn_of_undefined(line)
        self._cuts.judge(line)
        if self._tracker.add(line["step"], line) and (best := self._tracker.best) is not None:
            self._events.write(event="best", metric=best.metric, step=best.step, value=best.value)
        if line["step"] < self._job.steps and not self._tracker.over:
            for plateau in self._tracker.plateaus:
                if plateau.reduced:
                    text = f"optimizer.{plateau.of}: the learning rate falls at step {line['step']}: "
                    text += standstill(plateau.best)
                    self._events.write(event="note", text=text)
        if self._tracker.stop and self._tracker.over and line["step"] < self._job.steps:
            text = f"training ends early, at step {line['step']}: {standstill(self._tracker.stop)}"
            self._events.write(event="stopped_early", step=line["step"], text=text)

    def _warn_of_undefined(self, line: dict[str, Any]) -> None:
        """Warn, once for each metric, that an evaluation without it decides nothing."""
        undecided: dict[str, list[str]] = {}
        for metric, decision in self._tracker.undecided(line):
            undecided.setdefault(metric, []).append(UNDECIDED[decision])
        for metric, consequences in undecided.items():
            if metric not in self._undefined:
                self._undefined.add(metric)
                text = f"the evaluation at step {line['step']} has no {metric}{why_undefined(metric, line)}, so "
                self._events.write(event="warning", text=text + " and ".join(consequences))

    def _warn_of_one_class(self, line: dict[str, Any]) -> None:
        """Warn, once for each label, that the samples of an evaluation are all positive or all negative.

        A loss of retrieval needs positive ones alone.
        """
        if self._state.run.is_for_retrieval:
            return
        for metric in [name for name, value in line.items() if name.partition("_")[0] == "auc" and value is None]:
            if line["eval_samples"] and self._undefined.isdisjoint((metric, f"ne{metric.removeprefix('auc')}")):
                self._undefined.add(metric)
                text = f"the evaluation at step {line['step']} has no {metric}{why_undefined(metric, line)}; look at "
                self._events.write(event="warning", text=text + "dataset.labels and dataset.split")


def standstill(best: Best) -> str:
    """Return the end of a sentence about the evaluations since the best one."""
    times = f"{best.since} evaluation{'s' if best.since > 1 else ''}"
    if best.value is None:
        return f"{best.metric} was not defined in {times}"
    delta = f" by more than {best.min_delta:g}" if best.min_delta else ""
    return f"{best.metric} has not improved{delta} over {best.value:.6g} of step {best.step} in {times}"


def why_undefined(metric: str, line: Mapping[str, Any]) -> str:
    """Return the likely reason, in brackets, why an evaluation has no such metric."""
    name, _, label = metric.partition("_")
    if label and line.get(f"log_loss_{label}", 0.0) is None:
        return " (no sample has its label)"
    if name in ("auc", "ne"):
        return " (all its labels are of one class)"
    if name == "gauc":
        return " (no query has labels of both classes)"
    if name == "r2":
        return " (all its labels are the same)"
    return " (none of its labels is above 0)" if metric.startswith(("pr_auc", "calibration")) else ""


class Pace:
    """The progress of one evaluation or prediction; `now` is in seconds."""

    def __init__(self, total: int, now: float) -> None:
        self._total = total
        self._begin_s = self._reported_s = now

    def line(self, rows: int, now: float) -> dict[str, Any] | None:
        """Return rows done, all rows, rows per second and seconds left; None if the last report was too recent."""
        if now - self._reported_s < EVERY_S:
            return None
        self._reported_s = now
        rate = rows / (now - self._begin_s)
        left = round((self._total - rows) / rate) if rate else None
        return {"rows": rows, "of": self._total, "rows_per_s": round(rate, 1), "eta_s": left}


class Traces:
    """The portions of traces that replicas send, and the replicas whose trace is complete."""

    def __init__(self, state: JobState) -> None:
        self._state, self._is_wanted = state, state.job.trace_first < state.job.trace_last
        self._whole: dict[str, int] = {}
        """Incarnation of each replica whose trace is complete."""
        self._spans: dict[str, int] = {}
        """Number of spans of each process so far."""

    def unfinished(self, members: Sequence[Member]) -> set[str]:
        """Return the names of those of these replicas that still have a portion to send."""
        if not self._is_wanted:
            return set()
        return {member.name for member in members if self._whole.get(member.name) != member.incarnation}

    def on_recorded(self, peer: Peer, message: Recorded) -> None:
        """Have a portion written; raise WireError for an invalid one."""
        member = self._state.find(message.sender)
        try:
            portion = PORTIONS.decode(message.portion)
        except msgspec.DecodeError as error:
            raise WireError(f"{member.name} has sent an invalid portion of a trace: {error}") from error
        spans = self._spans.get(portion.process, 0) + len(portion.spans)
        if portion.replica != member.name or not self._is_wanted or spans > 2 * SPANS_LIMIT:
            raise WireError(f"{member.name} has sent a portion of a trace that was not requested")
        self._spans[portion.process] = spans
        self._state.start(WriteTrace(peer, member.name, member.incarnation, portion))

    def on_written(self, task: WriteTrace, failure: str) -> None:
        """Acknowledge a portion; count one that the disk has refused."""
        if failure:
            self._state.record.record_unwritten(task.name, len(task.portion.spans), failure)
        if task.portion.is_last:
            self._whole[task.name] = task.incarnation
        self._state.reply(task.peer, Ack())


class TraceFiles:
    """The trace files of a run; all methods wait for a disk."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._behind_ns = time.time_ns() - time.monotonic_ns()

    def append(self, portion: TracePortion) -> str:
        """Append a portion to the file of its replica; return the reason why the disk refused it, or an empty text."""
        try:
            self._append(portion)
        except OSError as error:
            log.warning("a portion of the trace of %s is lost: %s", portion.replica, error)
            return error.strerror or str(error)
        return ""

    def _append(self, portion: TracePortion) -> None:
        clock = clock_name()
        if portion.clock == clock:
            portion = msgspec.structs.replace(portion, ahead_ns=0, within_ns=0)
        portion = msgspec.structs.replace(portion, clock=clock, behind_ns=self._behind_ns)
        path = recording_of(self._run_dir, portion.replica)
        path.parent.mkdir(exist_ok=True)
        rest = memoryview(msgspec.json.encode(portion) + b"\n")
        with path.open("ab", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(whole)  # a partial line would damage the next one
                raise
