"""The coordinator's part in endings: replicas that give up or are stopped, and telling all others to stop."""

from collections.abc import Callable

from persia_cli.control.membership import Member, Membership
from persia_cli.errors import PersiaError, RoleError, WireError
from persia_cli.roles.coordinator.joining import JoinHandler
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.save_requests import SAVE_AND_END
from persia_cli.roles.coordinator.work_queue import WorkQueue
from persia_cli.roles.session import REASON_LIMIT
from persia_cli.wire.job_messages import Fail, Instruction, Leave, Stop
from persia_cli.wire.messages import Ack
from persia_cli.wire.server import Peer, Server

AT_ONCE_S = 1.0
"""The most seconds in which replicas are told to stop where a signal ends the job."""
LISTENING_S = 2.0
"""Seconds after which a replica that has not been heard of is not waited for at the end of a job."""


class ReplicaError(PersiaError):
    """The job ended because of this error of a replica."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class Shutdown:
    """Sends everybody away; `give_up` is called with why, and the exit code, where a replica ends the job."""

    def __init__(
        self,
        server: Server,
        joining: JoinHandler,
        membership: Membership,
        work: WorkQueue,
        clock: Callable[[], float],
        give_up: Callable[[str, int], None],
        save_and_end: Callable[[str, str], None],
        recordings: Recordings,
    ) -> None:
        """`clock` returns the seconds in which the coordinator has been running.

        `save_and_end` is called with a signal and the replica that got it.
        """
        self._server = server
        self._joining = joining
        self.membership = membership
        self.work = work
        self.clock = clock
        self.give_up = give_up
        self._save_and_end = save_and_end
        self._recordings = recordings
        self._told: set[str] = set()
        self.begun = False

    def note_told(self, name: str) -> None:
        """Take note that a replica knows that it is to stop."""
        self._told.add(name)

    def on_fail(self, peer: Peer, message: Fail) -> None:
        """A replica cannot go on, and so the job cannot."""
        member = self._joining.find(message.sender)
        self._server.reply(peer, Ack())
        self._told.add(member.name)
        self.give_up(f"{member.name}: {message.error}", message.exit_code)

    def on_leave(self, peer: Peer, message: Leave) -> None:
        """Note that a replica got a signal, which ends the job. Raises WireError for one that has no place in it."""
        name = f"{message.role}-{message.index}"
        member = self.membership.members.get((message.role, message.index))
        if name not in self.membership.missing and (member is None or member.process != message.process):
            raise WireError(f"{name}, process {message.process.pid}, is not in this job")
        self._server.reply(peer, Ack())
        if not message.serves:
            self._told.add(name)
        if self.begun:
            return
        if message.signal in SAVE_AND_END:
            self._save_and_end(message.signal, name)
        if not message.serves:
            self.give_up(f"{name} was stopped ({message.signal})", RoleError.exit_code)

    def send_away(self, why: str, number: int, seconds: float, poll: Callable[[], None], goes_on: bool = False) -> None:
        """Ask every replica to stop: those that wait to join or for an instruction, and all that send heartbeats.

        `number` is that of the instruction; until all have heard, `poll` is called, for so many seconds at the most.
        """
        self.begun = True
        self._told.update(self._joining.close(f"the job has ended: {why}"))
        self.work.instruct(Instruction(number, Stop(why[:REASON_LIMIT], goes_on)))
        deadline = self.clock() + seconds
        while self._awaited() and self.clock() < deadline:
            poll()

    def _awaited(self) -> set[str]:
        """Names of the replicas that do not know yet that they are to stop, or that have a trace to send."""
        listening = self._listening()
        return {member.name for member in listening} - self._told | self._recordings.unfinished(listening)

    def _listening(self) -> list[Member]:
        """Return the replicas that were heard of just now; the others may be dead, stopped or stuck."""
        silent = {member.name for member in self.membership.silent(self.clock(), LISTENING_S)}
        return [each for each in self.membership.members.values() if not each.died and each.name not in silent]
