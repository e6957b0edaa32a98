"""The death of a process: whether the replica gets a new one, and the news for the other replicas."""

import signal
import time
from dataclasses import dataclass
from typing import Any

from persia_cli.control.membership import Member
from persia_cli.control.restarts import LOST_WITH_SUPERVISOR, NEVER_AGAIN, RestartPolicy, ended_how
from persia_cli.errors import RoleError, WireError
from persia_cli.plan.replacement import WITH_MEMORY, is_replaced
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.wire.figures import FINISHED, SENT_AGAIN, Counters
from persia_cli.wire.job_messages import Beat, Change, Death, Verdict
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer

REPEATED = {
    "data-loader": "steps",
    "embedding-worker": "batches",
    "embedding-server": "requests",
}
"""The work that is repeated, by role."""


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


class Replacements:
    """Decides on restarts, and announces deaths and new processes to all replicas."""

    def __init__(self, context: JobContext, saving: Saving) -> None:
        """`saving` gives up the files of a checkpoint that a dead process was writing."""
        self._context, self._saving, run = context, saving, context.run
        self._events, self._membership, self._clock = context.events, context.membership, context.now
        self._policy = RestartPolicy(run.recovery.max_restarts, run.recovery.window_s)
        self._verdicts: dict[tuple[str, int, ProcessId], Verdict] = {}
        self._changes: dict[str, Change] = {}
        self._number = 0
        self._replacements: dict[str, Replacement] = {}
        self._heard: dict[str, int] = {}
        self._sent_again: dict[str, int] = {}
        self._sent_by_dead = 0

    def on_death(self, peer: Peer, message: Death) -> None:
        """Answer the parent of a process that ended; raises WireError for one that is not the replica's last."""
        key = (message.role, message.index, message.process)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(message)
        self._context.reply(peer, self._verdicts[key])

    def judge_gone(self, member: Member) -> Verdict:
        """Decide on a replica whose supervisor was killed with it, so that no parent reports its death."""
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
        if not self._context.stopping:
            self._context.give_up(why, code)
        return Verdict(False, 0.0, why)

    def _may_go_on(self, message: Death) -> bool:
        phase = self._context.phases.current
        return (
            self._policy.max_restarts > 0
            and is_replaced(message.role, message.exit_code, memory_is_kept=True)
            and phase is not None
            and phase.kind != "done"
            and (message.role, message.index) in self._membership.members
            and not self._context.stopping
        )

    def _lose(self, message: Death, name: str, how: str) -> None:
        """Note that a process is dead, and prepare its replacement."""
        now = self._clock()
        member = self._membership.lose(message.role, message.index, now)
        self._saving.note_death(name, how)
        self._sent_by_dead += self._sent_again.pop(name, 0)
        self._heard.pop(name, None)
        before = self._replacements.get(name)
        loader = message.role == "data-loader"
        self._replacements[name] = Replacement(
            message.role,
            message.index,
            how,
            message.process,
            before.died_s if before else now,
            REPEATED[message.role],
            self._context.work.take_back(name) + (before.again or 0 if before else 0) if loader else None,
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
        """Announce the address of a replica that is ready, if it is a new process."""
        replacement = self._replacements.get(member.name)
        if replacement is None:
            return
        self._note_change(member, replacement.process, alive=True)
        replacement.change = self._number
        self._finish()

    def beat(self, heard: int) -> Beat:
        """Return the answer to the heartbeat of a replica that has received the changes up to a number."""
        changes = tuple(change for change in self._changes.values() if change.number > heard)
        return Beat(self._context.stopping, changes, time.monotonic_ns())

    def note_heartbeat(self, member: Member, heard: int, counters: Counters) -> None:
        """Note up to which change a replica is informed, and what it has sent again or finished."""
        if member.role == "data-loader":
            self._heard[member.name] = heard
            self._sent_again[member.name] = counters.counts.get(SENT_AGAIN, 0)
        self.note_counters(member, counters)

    def note_counters(self, member: Member, counters: Counters) -> None:
        """Note how many requests of the process before a new one has finished."""
        replacement = self._replacements.get(member.name)
        if replacement is not None and replacement.repeated == "requests" and replacement.change:
            replacement.again = counters.updates.get(FINISHED, 0)
        if self._replacements:
            self._finish()

    def _finish(self) -> None:
        """Record the recoveries that are over: the lost work is sent again or finished."""
        for name, replacement in list(self._replacements.items()):
            if replacement.repeated == "batches":
                waits = any(n < replacement.change for n in self._heard.values())
            else:
                waits = replacement.again is None
            if not replacement.change or waits:
                continue
            del self._replacements[name]
            self._events.write(event="recovered", **self._described(replacement))

    def _described(self, replacement: Replacement) -> dict[str, Any]:
        again = self._sent - replacement.sent_before if replacement.repeated == "batches" else replacement.again
        return {
            "replica": f"{replacement.role}-{replacement.index}",
            "cause": replacement.cause,
            "pid": self._membership.members[replacement.role, replacement.index].process.pid,
            "seconds": round(self._clock() - replacement.died_s, 3),
            "repeated": {replacement.repeated: again},
        }
