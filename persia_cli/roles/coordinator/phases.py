"""The phases of a job follow each other, and the job ends: as planned, by a signal, or because a replica has failed."""

# Invariants:
#
# - A phase begins once, with all participants of the one before done, and ends once.
# - No phase begins once the job fails, or ends by a signal whose time is up.
# - The last phase begins only when the model is saved as planned, and every step could be read.
# - Once replicas are asked to end, nothing but their answers is awaited: no failure is recorded after that.

from typing import Any

from persia_cli.control.membership import Member
from persia_cli.control.phases import Phase
from persia_cli.errors import WireError
from persia_cli.roles.coordinator.checkpoints import SAVE_AND_END, Saves
from persia_cli.roles.coordinator.members import Deaths, JobMembers
from persia_cli.roles.coordinator.record import Reporting, Traces
from persia_cli.roles.coordinator.state import GONE_S, JobState, PublishScores
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.roles.session import REASON_LIMIT
from persia_cli.wire.job_messages import (
    Done,
    EvaluateSteps,
    Fail,
    Instruction,
    Leave,
    Pause,
    PhaseWork,
    PredictSteps,
    SavedNow,
    SaveModel,
    Stop,
    TrainSteps,
)
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer


class Phases:
    """The phases of a job in order."""

    def __init__(self, state: JobState, work: WorkQueue, saves: Saves, deaths: Deaths, reporting: Reporting) -> None:
        self._state, self._work, self._saves, self._deaths, self._reporting = state, work, saves, deaths, reporting
        self._ended: Phase | None = None
        """The last phase whose end has been handled."""
        self._is_cut = self._follows_cut = False
        """True in a cut for the publisher, and after it: there are too many for the journal, which has their ends."""
        self._publishing = False
        """True while the file of a prediction is published."""

    def on_done(self, peer: Peer, message: Done) -> None:
        """Record that a replica has carried out an instruction."""
        state = self._state
        member = state.find(message.sender)
        if message.usage is not None:
            state.record.note(member.name, message.usage, member.incarnation)
            self._deaths.on_counters(member, message.usage.counters)
        state.reply(peer, Ack())
        if state.stopping:
            state.informed.add(member.name)
        else:
            state.phases.finish(member.name, message.number)

    def tick(self) -> None:
        """Begin the next phase if the present one is done; called after every event."""
        while self._is_between_phases() and not self._state.phases.is_blocked and not self._saves.waits_to_retry():
            self._advance()

    def _is_between_phases(self) -> bool:
        """Return True if the next phase may begin; handle the end of the present one, once."""
        state, phase = self._state, self._state.phases.current
        if state.is_over or state.is_ending:
            return False
        if phase is None:
            return state.started
        if state.phases.waiting:
            return False
        # The end is handled once, though this is called again while scores are being published.
        if phase is not self._ended:
            self._ended = phase
            self._end(phase)
        return not state.is_over and not self._publishing

    def _end(self, phase: Phase) -> None:
        if phase.kind == "done":
            self._state.is_over = True
        elif phase.kind == "training":
            self._state.step = phase.last
            self._work.end_training(phase.last)
        elif phase.kind == "evaluating":
            self._work.end_evaluation()
        elif phase.kind == "predicting":
            self._publishing = True
            self._state.start(PublishScores())

    def on_scores_published(self, scored: dict[str, Any]) -> None:
        """Record that the file of a prediction is complete."""
        self._publishing = False
        self._state.events.write(event="scored", **scored)

    def _advance(self) -> None:
        phases = self._state.phases
        if self._saves.repeats_last:
            phases.save_again()
        phase = phases.advance()
        self._follows_cut, self._is_cut = self._is_cut, phase.trigger == "publish"
        if phase.kind == "saving":
            self._work.end_phase()
            self._saves.begin(phase)
        elif phase.kind != "done" or self._saves.may_end():
            self._begin(phase, self._work_of(phase))

    def on_save_begun(self, phase: Phase, result: SaveModel | dict[str, Any] | None) -> None:
        """Have the replicas write a checkpoint whose folder is ready, or end the phase if there is nothing to write."""
        work = self._saves.on_begun(result)
        if self._state.is_ending:
            return
        if work is not None:
            self._begin(phase, work)
        else:
            self._state.phases.writing.clear()
            self._state.phases.waiting.clear()

    def _begin(self, phase: Phase, work: PhaseWork) -> None:
        state = self._state
        if phase.kind == "done" and phase.is_cut:
            state.write_stopped()
        elif not self._is_cut and not (self._follows_cut and phase.kind == "training"):
            state.events.write(event="phase", phase=phase.kind, step=state.step)
        state.stall.restart(state.now)
        self._work.instruct(Instruction(state.phases.number, work))
        self._saves.on_phase(phase)

    def _work_of(self, phase: Phase) -> PhaseWork:
        match phase.kind:
            case "training":
                portions = self._state.portions
                expires = portions.expires_at(phase.first) if portions is not None else 0
                return TrainSteps(phase.first, phase.last, *phase.reductions, expires)
            case "evaluating" | "predicting":
                self._reporting.begin_scoring()
                self._work.evaluate(phase.first, phase.last)
                steps = EvaluateSteps if phase.kind == "evaluating" else PredictSteps
                return steps(phase.first, phase.last)
            case "idle":
                return Pause(phase.last)
            case _:
                return Stop(is_resumable=phase.is_cut)


class Shutdown:
    """The early end of a job: a replica fails or is stopped, and all others are asked to end."""

    def __init__(self, state: JobState, work: WorkQueue, members: JobMembers, saves: Saves, traces: Traces) -> None:
        self._state, self._work, self._members, self._saves, self._traces = state, work, members, saves, traces

    def on_fail(self, peer: Peer, message: Fail) -> None:
        """End the job because a replica has failed."""
        member = self._state.find(message.sender)
        self._state.reply(peer, Ack())
        self._state.informed.add(member.name)
        self._state.abort(f"{member.name}: {message.error}", message.exit_code)

    def on_leave(self, peer: Peer, message: Leave) -> None:
        """End the job because a replica received a signal; raise WireError for a process outside the job."""
        state, name = self._state, f"{message.role}-{message.index}"
        member = state.membership.members.get((message.role, message.index))
        if name not in state.membership.missing and (member is None or member.process != message.process):
            raise WireError(f"{name}, process {message.process.pid}, is not in this job")
        state.reply(peer, Ack())
        if message.signal in SAVE_AND_END and not state.stopping:
            self._saves.end(message.signal, name)
        if not message.serves:
            state.informed.add(name)
            state.abort(f"{name} was stopped ({message.signal})")

    def stop_replicas(self, why: str) -> None:
        """Ask every replica to end: those that wait to join or for an instruction, and all that send heartbeats.

        A job that has not failed is recorded as stopped.
        """
        state = self._state
        if state.failure is None and not state.stopping:
            state.write_stopped()
        state.stopping = True
        self._saves.answer(SavedNow("", f"the job ends: {why}"))
        state.informed.update(self._members.close(f"the job has ended: {why}"))
        self._work.instruct(Instruction(state.phases.number + 1, Stop(why[:REASON_LIMIT], state.is_resumable)))

    def awaited(self) -> set[str]:
        """Return the names of the replicas that are not informed yet, or that have a part of a trace to send."""
        listening = self._listening()
        uninformed = {member.name for member in listening} - self._state.informed
        return uninformed | self._traces.unfinished(listening)

    def _listening(self) -> list[Member]:
        """Return the replicas with a recent message; the others may be dead, stopped or stuck."""
        membership = self._state.membership
        silent = {member.name for member in membership.silent(self._state.now, GONE_S)}
        return [m for m in membership.members.values() if not m.died and m.name not in silent]
