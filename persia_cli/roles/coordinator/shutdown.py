"""The end of a job: a replica fails or is stopped, and all others are asked to end."""

from collections.abc import Callable

from persia_cli.control.membership import Member
from persia_cli.errors import RoleError, WireError
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.joining import Joining
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.save_requests import SAVE_AND_END, SaveRequests
from persia_cli.roles.session import REASON_LIMIT
from persia_cli.wire.job_messages import Fail, Instruction, Leave, Stop
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer

AT_ONCE_S = 1.0
"""Maximum number of seconds in which replicas are asked to end after a signal."""
LISTENING_S = 2.0
"""Seconds of silence after which the end of a job does not wait for a replica any longer."""


class Shutdown:
    """The end of the replicas of a job."""

    def __init__(
        self, context: JobContext, joining: Joining, save_requests: SaveRequests, recordings: Recordings
    ) -> None:
        self._context, self._joining = context, joining
        self._save_requests, self._recordings = save_requests, recordings

    def on_fail(self, peer: Peer, message: Fail) -> None:
        """End the job because a replica has failed."""
        member = self._context.find(message.sender)
        self._context.reply(peer, Ack())
        self._context.informed.add(member.name)
        self._context.abort(f"{member.name}: {message.error}", message.exit_code)

    def on_leave(self, peer: Peer, message: Leave) -> None:
        """End the job because a replica received a signal; raise WireError for a process outside the job."""
        context, name = self._context, f"{message.role}-{message.index}"
        member = context.membership.members.get((message.role, message.index))
        if name not in context.membership.missing and (member is None or member.process != message.process):
            raise WireError(f"{name}, process {message.process.pid}, is not in this job")
        context.reply(peer, Ack())
        if not message.serves:
            context.informed.add(name)
        if context.stopping:
            return
        if message.signal in SAVE_AND_END:
            self._save_requests.end(message.signal, name)
        if not message.serves:
            context.abort(f"{name} was stopped ({message.signal})", RoleError.exit_code)

    def stop_replicas(self, why: str, seconds: float, poll: Callable[[], None], goes_on: bool) -> None:
        """Ask every replica to end: those that wait to join or for an instruction, and all that send heartbeats.

        Call `poll` until all of them are informed, for at most `seconds`.
        """
        context = self._context
        context.stopping = True
        context.informed.update(self._joining.close(f"the job has ended: {why}"))
        stop = Instruction(context.phases.number + 1, Stop(why[:REASON_LIMIT], goes_on))
        context.work.instruct(stop)
        deadline = context.now() + seconds
        while self._awaited() and context.now() < deadline:
            poll()

    def _awaited(self) -> set[str]:
        """Return the names of the replicas that are not informed yet, or that have a part of a trace to send."""
        listening = self._listening()
        uninformed = {member.name for member in listening} - self._context.informed
        return uninformed | self._recordings.unfinished(listening)

    def _listening(self) -> list[Member]:
        """Return the replicas with a recent message; the others may be dead, stopped or stuck."""
        membership = self._context.membership
        silent = {member.name for member in membership.silent(self._context.now(), LISTENING_S)}
        return [each for each in membership.members.values() if not each.died and each.name not in silent]
