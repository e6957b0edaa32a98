"""Deaths of processes: the answer to each by rule and limit, and the notice to the other replicas."""

from dataclasses import dataclass
from typing import Any

from persia_cli.control.membership import Member
from persia_cli.control.restarts import NEVER_AGAIN, SILENT, RestartPolicy, ended_how, may_be_replaced
from persia_cli.errors import RoleError, WireError
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.state import JobState
from persia_cli.roles.coordinator.work import WorkQueue
from persia_cli.wire.job_messages import Beat, Change, Death, Verdict
from persia_cli.wire.message import ProcessId
from persia_cli.wire.reports import FINISHED, SENT_AGAIN, Counters
from persia_cli.wire.server import Peer

REPEATED = {
    "data-loader": "steps",
    "embedding-worker": "batches",
    "embedding-server": "requests",
}
"""The kind of repeated work, by role."""


@dataclass(slots=True)
class Replacement:
    """A new process of a dead replica, until the lost work is repeated; times are in seconds."""

    role: str
    index: int
    cause: str
    process: ProcessId
    died_s: float
    repeated: str
    """Kind of the repeated work: steps assigned again, batches whose ids are sent again, or finished requests."""
    again: int | None = None
    """The amount of repeated work, once known; batches are counted until the loaders have received the change."""
    sent_before: int = 0
    change: int = 0
    """Number of the change that announces the new process; 0 until it is ready."""


class Replacements:
    """The decisions on restarts, and the announcements of deaths and new processes to all replicas."""

    def __init__(self, state: JobState, work: WorkQueue, saving: Saving) -> None:
        """`work` assigns the steps of a dead loader again, and `saving` aborts a save that a death has spoilt."""
        self._state, self._work, self._saving = state, work, saving
        self._events, self._membership = state.events, state.membership
        self._policy = RestartPolicy(state.settings.max_restarts, state.settings.restart_window_s)
        self._verdicts: dict[tuple[str, int, ProcessId], Verdict] = {}
        self._changes: dict[str, Change] = {}
        self._number = 0
        self._replacements: dict[str, Replacement] = {}
        self._acknowledged: dict[str, int] = {}
        self._sent_again: dict[str, int] = {}
        self._sent_by_dead = 0

    def on_death(self, peer: Peer, message: Death) -> None:
        """Answer the parent of a process that ended; raise WireError for a process that is not the replica's last."""
        key = (message.role, message.index, message.process)
        # A repeated report must not count as another death.
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(message)
        self._state.reply(peer, self._verdicts[key])

    def _judge(self, message: Death) -> Verdict:
        name = f"{message.role}-{message.index}"
        how = ended_how(message.exit_code)
        member = self._membership.members.get((message.role, message.index))
        if member is not None and member.killed_s is not None:
            how = SILENT
        if member is not None and not member.died and member.process != message.process:
            present = f"process {member.process.pid} on {member.host}"
            raise WireError(f"the process that ended, {message.process.pid}, is not that of {name}, {present}")
        why = f"{name} {how}"
        if self._may_go_on(message):
            after_s = self._policy.next(name, self._state.now)
            if after_s is not None:
                if member is not None:
                    self._lose(message, name, how)
                return Verdict(True, after_s, "")
            limits = f"{self._policy.max_restarts} within {self._policy.window_s:g} s"
            why += f", and its restarts are used up (recovery.max_restarts: {limits})"
        code = message.exit_code if message.exit_code in NEVER_AGAIN else RoleError.exit_code
        if not self._state.stopping:
            self._state.abort(why, code)
        return Verdict(False, 0.0, why)

    def _may_go_on(self, message: Death) -> bool:
        phase = self._state.phases.current
        return (
            self._policy.max_restarts > 0
            and may_be_replaced(message.role, message.exit_code, memory_is_retained=True)
            and phase is not None
            and phase.kind != "done"
            and (message.role, message.index) in self._membership.members
            and not self._state.stopping
        )

    def _lose(self, message: Death, name: str, how: str) -> None:
        """Record the death of a process, and prepare its replacement."""
        now = self._state.now
        member = self._membership.lose(message.role, message.index, now)
        self._saving.on_death(name, how)
        # The counter of the next process begins at 0, so that of the dead one is added to the total.
        self._sent_by_dead += self._sent_again.pop(name, 0)
        self._acknowledged.pop(name, None)
        before = self._replacements.get(name)
        loader = message.role == "data-loader"
        self._replacements[name] = Replacement(
            message.role,
            message.index,
            how,
            message.process,
            # A second death before the recovery belongs to the same recovery.
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
        """Announce the address of a replica that is ready, if it is a new process."""
        replacement = self._replacements.get(member.name)
        if replacement is None:
            return
        self._note_change(member, replacement.process, alive=True)
        replacement.change = self._number
        self._finish()

    def beat(self, last_change: int) -> Beat:
        """Return the answer to a replica that has received the changes up to `last_change`; the edge adds the clock."""
        changes = tuple(change for change in self._changes.values() if change.number > last_change)
        return Beat(self._state.stopping, changes)

    def note_heartbeat(self, member: Member, last_change: int, counters: Counters) -> None:
        """Record the last change that a replica has received, and the number of requests that it sent again."""
        if member.role == "data-loader":
            self._acknowledged[member.name] = last_change
            self._sent_again[member.name] = counters.counts.get(SENT_AGAIN, 0)
        self.note_counters(member, counters)

    def note_counters(self, member: Member, counters: Counters) -> None:
        """Record how many requests of the dead process its replacement has finished."""
        replacement = self._replacements.get(member.name)
        if replacement is not None and replacement.repeated == "requests" and replacement.change:
            replacement.again = counters.updates.get(FINISHED, 0)
        if self._replacements:
            self._finish()

    def _finish(self) -> None:
        """Record the completed recoveries, whose lost work is sent again or finished."""
        for name, replacement in list(self._replacements.items()):
            if replacement.repeated == "batches":
                # Loaders send batches again when they receive the change, so the count is final after the last one.
                waits = any(n < replacement.change for n in self._acknowledged.values())
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
            "seconds": round(self._state.now - replacement.died_s, 3),
            "repeated": {replacement.repeated: again},
        }
