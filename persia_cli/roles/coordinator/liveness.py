"""The watch over replicas: a silent one is killed, and a job ends if one is late or stuck, or if nothing progresses."""

from persia_cli.control.membership import Member
from persia_cli.plan.job import COORDINATOR
from persia_cli.roles.coordinator.deaths import Replacements
from persia_cli.roles.coordinator.members import Loading
from persia_cli.roles.coordinator.state import JobState, Kill, TimePassed
from persia_cli.wire.job_messages import Heartbeat
from persia_cli.wire.server import Peer

STILL_TIMES = 4
"""Multiple of `cluster.silence_timeout_s` after which a job without any progress is aborted."""
NOTICE_AFTER_S = 10.0
"""Seconds of work on one thing before a notice, and between two notices."""


class Liveness:
    """The heartbeats of the replicas of one job, and what their absence means."""

    def __init__(self, state: JobState, loading: Loading, replacements: Replacements) -> None:
        self._state, self._loading, self._replacements = state, loading, replacements
        self._membership, self._phases, self._limits = state.membership, state.phases, state.settings
        self._noticed_s = state.now

    def on_heartbeat(self, peer: Peer, message: Heartbeat) -> None:
        """Record that a replica is alive, and answer with the changes that it has not received."""
        state, counters = self._state, message.figures.counters
        member = state.find(message.sender)
        state.record.note(member.name, message.figures, member.incarnation)
        self._replacements.note_heartbeat(member, message.heard, counters)
        self._loading.note(member.name, counters.counts.get("rows_loaded", 0))
        member.doing, member.doing_s = message.doing, message.doing_s
        state.stall.note(member.name, counters, state.now)
        if message.doing and message.doing_s <= self._limits.work_timeout_s:
            state.stall.restart(state.now)
        state.reply(peer, self._replacements.beat(message.heard))
        if state.stopping:
            state.informed.add(member.name)

    def on_time(self, event: TimePassed) -> None:
        """Kill a silent replica; abort the job if one is late or stuck, or cannot be killed from here.

        At the end of a job, do not wait for such a replica.
        """
        phase = self._phases.current
        is_at_end = phase is not None and phase.kind == "done"
        if phase is not None and not is_at_end:
            for member in self._silent():
                if member.ready and member.killed_s is None and self._may_kill(member):
                    self._kill(member)
        problem = (None if is_at_end else self._problem()) or self._disk_problem(event)
        if problem:
            self._state.abort(problem)
        elif is_at_end:
            for member in self._silent() + self._membership.replaced + self._stuck():
                self._phases.finish(member.name, self._phases.number)
        self._notice(event)

    def _silent(self) -> list[Member]:
        return self._membership.silent(self._state.now, self._limits.silence_timeout_s)

    def _stuck(self) -> list[Member]:
        return self._membership.stuck(self._limits.work_timeout_s)

    def _may_kill(self, member: Member) -> bool:
        """Return True for another process at the coordinator's place, where process ids mean the same."""
        own, other = self._limits.process, member.process
        return bool(own.place) and other.place == own.place and other.pid != own.pid

    def _kill(self, member: Member) -> None:
        """Kill a silent process, so that it never acts again; its supervisor then reports its death as any other."""
        state = self._state
        member.killed_s = state.now
        state.stall.restart(state.now)
        text = f"{self._silence(member)} (cluster.silence_timeout_s), so it is killed"
        state.effects.append(Kill(member.process))
        state.events.write(event="warning", text=text, killed=member.process.pid)

    def _problem(self) -> str | None:
        """Return the reason to abort a job that is not at its end, or None."""
        now, limits, phase = self._state.now, self._limits, self._phases.current
        for member in self._stuck():
            return (
                f"{_described(member)} has been {member.doing} for {member.doing_s:.0f} s; see its log "
                "(cluster.work_timeout_s raises the limit)"
            )
        if phase is None:
            return self._lateness()
        for member in self._membership.replaced:
            # A process that loads its rows anew may take long; the limit of `stuck` holds for that.
            if not member.doing and now - member.lost_s > limits.start_timeout_s:
                return (
                    f"{member.name} has died, and its new process is not ready after "
                    f"{limits.start_timeout_s:g} s; see its log (cluster.start_timeout_s raises the limit)"
                )
        for member in self._silent():
            if member.ready and (member.killed_s is None or now - member.killed_s > limits.silence_timeout_s):
                return f"{self._silence(member)}; see its log (cluster.silence_timeout_s raises the limit)"
        still_s = self._state.stall.still_s(now)
        if phase.kind == "paused" or still_s <= STILL_TIMES * limits.silence_timeout_s:
            return None
        return (
            f"all replicas are alive, yet nothing has moved for {still_s:.0f} s while {phase.kind}, waiting for "
            f"{', '.join(sorted(self._phases.waiting | self._phases.writing))}; see the logs "
            "(cluster.silence_timeout_s raises the limit)"
        )

    def _lateness(self) -> str | None:
        # Replicas that have joined wait for the missing ones; only the latter are late.
        missing, now = self._membership.missing, self._state.now
        limit_s = self._limits.start_timeout_s
        if now <= limit_s or (not missing and self._state.stall.still_s(now) <= limit_s):
            return None
        return (
            f"{'not joined' if missing else 'not ready'} after {limit_s:g} s: "
            f"{', '.join(missing or self._membership.unready)}; see their logs "
            "(cluster.start_timeout_s raises the limit)"
        )

    def _disk_problem(self, event: TimePassed) -> str | None:
        """Return the reason to abort the job if the coordinator's own work on a disk takes too long."""
        if not event.doing:
            return None
        if event.doing_s <= self._limits.work_timeout_s:
            self._state.stall.restart(event.now)
            return None
        return (
            f"{COORDINATOR}-0 has been {event.doing} for {event.doing_s:.0f} s; check the disk or store "
            "(cluster.work_timeout_s raises the limit)"
        )

    def _notice(self, event: TimePassed) -> None:
        """Record what takes longest, at most every NOTICE_AFTER_S; the coordinator's own work on a disk counts too."""
        member = self._membership.busiest
        name, doing, seconds = (member.name, member.doing, member.doing_s) if member else ("", "", 0.0)
        if event.doing_s > seconds:
            name, doing, seconds = f"{COORDINATOR}-0", event.doing, event.doing_s
        if seconds >= NOTICE_AFTER_S and event.now - self._noticed_s >= NOTICE_AFTER_S:
            self._noticed_s = event.now
            self._state.events.write(event="waiting", replica=name, doing=doing, seconds=round(seconds))

    def _silence(self, member: Member) -> str:
        """Return a clause about a silent replica."""
        return f"{_described(member)} has shown no progress for {self._limits.silence_timeout_s:g} s"


def _described(member: Member) -> str:
    return f"{member.name} (process {member.process.pid} on {member.host})"
