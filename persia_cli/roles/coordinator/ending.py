"""The end of a job: a replica fails or is stopped, and all others are asked to end."""

from persia_cli.control.membership import Member
from persia_cli.errors import RoleError, WireError
from persia_cli.roles.coordinator.members import Joining
from persia_cli.roles.coordinator.record import Traces
from persia_cli.roles.coordinator.save_requests import SAVE_AND_END, SaveRequests
from persia_cli.roles.coordinator.state import JobState
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.roles.session import REASON_LIMIT
from persia_cli.wire.job_messages import Fail, Instruction, Leave, Stop
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

LISTENING_S = 2.0
"""Seconds of silence after which the end of a job does not wait for a replica any longer."""


class Shutdown:
    """The end of the replicas of a job."""

    def __init__(
        self, state: JobState, work: WorkQueue, joining: Joining, save_requests: SaveRequests, traces: Traces
    ) -> None:
        self._state, self._work, self._joining = state, work, joining
        self._save_requests, self._traces = save_requests, traces

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
        if not message.serves:
            state.informed.add(name)
        if state.stopping:
            return
        if message.signal in SAVE_AND_END:
            self._save_requests.end(message.signal, name)
        if not message.serves:
            state.abort(f"{name} was stopped ({message.signal})", RoleError.exit_code)

    def stop_replicas(self, why: str, goes_on: bool) -> None:
        """Ask every replica to end: those that wait to join or for an instruction, and all that send heartbeats."""
        state = self._state
        state.stopping = True
        self._save_requests.answer("", f"the job ends: {why}")
        state.informed.update(self._joining.close(f"the job has ended: {why}"))
        self._work.instruct(Instruction(state.phases.number + 1, Stop(why[:REASON_LIMIT], goes_on)))

    def awaited(self) -> set[str]:
        """Return the names of the replicas that are not informed yet, or that have a part of a trace to send."""
        listening = self._listening()
        uninformed = {member.name for member in listening} - self._state.informed
        return uninformed | self._traces.unfinished(listening)

    def _listening(self) -> list[Member]:
        """Return the replicas with a recent message; the others may be dead, stopped or stuck."""
        membership = self._state.membership
        silent = {member.name for member in membership.silent(self._state.now, LISTENING_S)}
        return [each for each in membership.members.values() if not each.died and each.name not in silent]
