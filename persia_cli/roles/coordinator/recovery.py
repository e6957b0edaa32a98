"""The coordinator's part when a process dies: whether the replica gets a new one, and who has to know."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from persia_cli.config.schema import Run
from persia_cli.control.membership import Member
from persia_cli.control.phases import PhaseMachine
from persia_cli.control.restarts import LOST_WITH_SUPERVISOR, NEVER_AGAIN, RestartPolicy, ended_how
from persia_cli.errors import RoleError, WireError
from persia_cli.observe.journal import Journal
from persia_cli.plan.replacement import WITH_MEMORY, is_replaced
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.wire.figures import FINISHED, SENT_AGAIN, Counters
from persia_cli.wire.job_messages import Beat, Change, Death, Verdict
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer, Server

REPEATED = {
    "data-loader": "steps",
    "embedding-worker": "batches",
    "embedding-server": "requests",
}
"""What is done again by role."""


@dataclass(slots=True)
class Replacement:
    """A new process in the place of one that died, until what was lost is done again; times are in seconds."""

    role: str
    index: int
    cause: str
    process: ProcessId
    died_s: float
    repeated: str
    """Repeated work: steps dealt anew, batches whose ids are sent again, or requests finished."""
    again: int | None = None
    """How many, once it is known of all but batches, which are counted until others have heard of the new process."""
    sent_before: int = 0
    change: int = 0
    """Number of the change by which others learn of the new process; 0 until it is ready."""


class RecoveryHandler:
    """Decides on restarts, and tells all replicas of deaths and new processes."""

    def __init__(
        self,
        server: Server,
        run: Run,
        phases: PhaseMachine,
        events: Journal,
        dismissal: Shutdown,
        lose_files: Callable[[str, str], None],
    ) -> None:
        """`dismissal` is how the job ends, which it does after a death too many.

        `lose_files` is called with a replica that has died, and how, since it may have been writing a checkpoint.
        """
        self._lose_files = lose_files
        self._server = server
        self._phases = phases
        self._events = events
        self._dismissal = dismissal
        self._membership, self._work, self._clock = dismissal.membership, dismissal.work, dismissal.clock
        self._policy = RestartPolicy(run.recovery.max_restarts, run.recovery.window_s)
        self._verdicts: dict[tuple[str, int, ProcessId], Verdict] = {}
        self._changes: dict[str, Change] = {}
        self._number = 0
        self._under_way: dict[str, Replacement] = {}
        self._heard: dict[str, int] = {}
        self._sent_again: dict[str, int] = {}
        self._sent_by_dead = 0

    def on_death(self, peer: Peer, message: Death) -> None:
        """A process has ended, as its parent saw. Raises WireError for one that is not the replica's last."""
        key = (message.role, message.index, message.process)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(message)
        self._server.reply(peer, self._verdicts[key])

    def judge_gone(self, member: Member) -> Verdict:
        """Take a replica for dead whose supervisor was killed with it, so that nothing reports it."""
        code = LOST_WITH_SUPERVISOR if member.role == WITH_MEMORY else -signal.SIGKILL
        return self._judge(Death(member.role, member.index, member.process, code))

    def _judge(self, message: Death) -> Verdict:
        name = f"{message.role}-{message.index}"
        how = ended_how(message.exit_code)
        member = self._membership.members.get((message.role, message.index))
        if member is not None and not member.died and member.process != message.process:
            present = f"process {member.process.pid} on {member.host}"
            raise WireError(f"the process that ended, {message.process.pid}, is not that of {name}, {present}")
        why = f"{name} {how}"
        if self._may_go_on(message):
            after_s = self._policy.next(name, self._clock())
            if after_s is not None:
                if member is not None:
                    self._lose(message, name, how)
                return Verdict(True, after_s, "")
            limits = f"{self._policy.max_restarts} within {self._policy.window_s:g} s"
            why += f", and its restarts are used up (recovery.max_restarts: {limits})"
        code = message.exit_code if message.exit_code in NEVER_AGAIN else RoleError.exit_code
        if not self._dismissal.begun:
            self._dismissal.give_up(why, code)
        return Verdict(False, 0.0, why)

    def _may_go_on(self, message: Death) -> bool:
        phase = self._phases.current
        return (
            self._policy.max_restarts > 0
            and is_replaced(message.role, message.exit_code, memory_is_kept=True)
            and phase is not None
            and phase.kind != "done"
            and (message.role, message.index) in self._membership.members
            and not self._dismissal.begun
        )

    def _lose(self, message: Death, name: str, how: str) -> None:
        """Take note that a process is dead."""
        now = self._clock()
        member = self._membership.lose(message.role, message.index, now)
        self._lose_files(name, how)
        self._sent_by_dead += self._sent_again.pop(name, 0)
        self._heard.pop(name, None)
        before = self._under_way.get(name)
        loader = message.role == "data-loader"
        self._under_way[name] = Replacement(
            message.role,
            message.index,
            how,
            message.process,
            before.died_s if before else now,
            REPEATED[message.role],
            self._work.take_back(name) + (before.again or 0 if before else 0) if loader else None,
            before.sent_before if before else self._sent,
        )
        self._note_change(member, message.process, alive=False)
        self._events.write(event="died", replica=name, pid=message.process.pid, cause=how)

    @property
    def _sent(self) -> int:
        return self._sent_by_dead + sum(self._sent_again.values())

    def _note_change(self, member: Member, died: ProcessId, alive: bool) -> None:
        self._number += 1
        self._changes[member.name] = Change(self._number, member.role, member.index, died, alive, member.address)

    def on_ready(self, member: Member) -> None:
        """A replica is ready; if it is a new process, everybody is told where to find it."""
        recovery = self._under_way.get(member.name)
        if recovery is None:
            return
        self._note_change(member, recovery.process, alive=True)
        recovery.change = self._number
        self._finish()

    def beat(self, heard: int) -> Beat:
        """Return the answer to the heartbeat of a replica that has heard of the changes up to a number."""
        changes = tuple(change for change in self._changes.values() if change.number > heard)
        return Beat(self._dismissal.begun, changes, time.monotonic_ns())

    def note_heartbeat(self, member: Member, heard: int, counters: Counters) -> None:
        """Note up to which change a replica has heard, and what it has sent again or finished."""
        if member.role == "data-loader":
            self._heard[member.name] = heard
            self._sent_again[member.name] = counters.counts.get(SENT_AGAIN, 0)
        self.note_figures(member, counters)

    def note_figures(self, member: Member, counters: Counters) -> None:
        """Note what a new process has done of the work of the one before, ."""
        recovery = self._under_way.get(member.name)
        if recovery is not None and recovery.repeated == "requests" and recovery.change:
            recovery.again = counters.updates.get(FINISHED, 0)
        if self._under_way:
            self._finish()

    def _finish(self) -> None:
        """Record the recoveries that are over: what was lost is sent again, or said to be finished."""
        for name, recovery in list(self._under_way.items()):
            if recovery.repeated == "batches":
                waits = any(n < recovery.change for n in self._heard.values())
            else:
                waits = recovery.again is None
            if not recovery.change or waits:
                continue
            del self._under_way[name]
            self._events.write(event="recovered", **self._described(recovery))

    def _described(self, recovery: Replacement) -> dict[str, Any]:
        again = self._sent - recovery.sent_before if recovery.repeated == "batches" else recovery.again
        return {
            "replica": f"{recovery.role}-{recovery.index}",
            "cause": recovery.cause,
            "pid": self._membership.members[recovery.role, recovery.index].process.pid,
            "seconds": round(self._clock() - recovery.died_s, 3),
            "repeated": {recovery.repeated: again},
        }
