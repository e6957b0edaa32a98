"""The watch over replicas: a silent one is killed, and a job ends if one is late or stuck, or if nothing progresses."""

from typing import Any

from persia_cli.config.schema import Cluster
from persia_cli.control.membership import Member, Membership, StallDetector
from persia_cli.control.phases import PhaseMachine
from persia_cli.wire.reports import Counters

STILL_TIMES = 4
"""Multiple of `cluster.silence_timeout_s` after which a job without any progress is aborted."""
NOTICE_AFTER_S = 10.0
"""Seconds of work on one thing before a notice, and between two notices."""


class LivenessMonitor:
    """The liveness of the replicas of one job; `now` is in seconds for which the coordinator was running."""

    def __init__(
        self, cluster: Cluster, membership: Membership, phases: PhaseMachine, stall: StallDetector, now: float
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._phases = phases
        self._stall = stall
        self._deadline = now + cluster.start_timeout_s
        self._noticed_s = now
        stall.restart(now)

    def note(self, member: Member, doing: str, doing_s: float, counters: Counters, now: float) -> None:
        """Record a replica's present work, its duration and its counters; work within its time limit is progress."""
        member.doing, member.doing_s = doing, doing_s
        self._stall.note(member.name, counters, now)
        if doing and doing_s <= self._cluster.work_timeout_s:
            self._stall.restart(now)

    def silent(self, now: float) -> list[Member]:
        """Return the replicas that are silent or stuck, of a job that has begun."""
        if self._phases.current is None:
            return []
        silent = self._membership.silent(now, self._cluster.silence_timeout_s) + self._membership.replaced
        return silent + self._membership.stuck(self._cluster.work_timeout_s)

    def waiting(self, now: float, disk_doing: str = "", disk_s: float = 0.0) -> dict[str, Any] | None:
        """Return the replica that takes longest, at most every NOTICE_AFTER_S; None if none takes long.

        The coordinator's own work on a disk counts as that of a replica.
        """
        member = self._membership.busiest
        name, doing, seconds = (member.name, member.doing, member.doing_s) if member else ("", "", 0.0)
        if disk_s > seconds:
            name, doing, seconds = "coordinator-0", disk_doing, disk_s
        if seconds < NOTICE_AFTER_S or now - self._noticed_s < NOTICE_AFTER_S:
            return None
        self._noticed_s = now
        return {"replica": name, "doing": doing, "seconds": round(seconds)}

    def hung(self, now: float) -> list[Member]:
        """Return the replicas to kill, of a job that has begun and is not over: those that have become silent."""
        phase = self._phases.current
        if phase is None or phase.kind == "done":
            return []
        silent = self._membership.silent(now, self._cluster.silence_timeout_s)
        return [member for member in silent if member.ready and member.killed_s is None]

    def problem(self, now: float) -> str | None:
        """Return the reason to abort the job, or None; replicas that are silent at its end do no harm."""
        phase = self._phases.current
        if phase is not None and phase.kind == "done":
            return None
        for member in self._membership.stuck(self._cluster.work_timeout_s):
            return (
                f"{_described(member)} has been {member.doing} for {member.doing_s:.0f} s; see its log "
                "(cluster.work_timeout_s raises the limit)"
            )
        if phase is None:
            return self._lateness(now)
        limit_s = self._cluster.silence_timeout_s
        for member in self._membership.replaced:
            # A process that loads its rows anew may take long; `stuck` limits that.
            if not member.doing and now - member.lost_s > self._cluster.start_timeout_s:
                return (
                    f"{member.name} has died, and its new process is not ready after "
                    f"{self._cluster.start_timeout_s:g} s; see its log (cluster.start_timeout_s raises the limit)"
                )
        for member in self._membership.silent(now, limit_s):
            if member.ready and (member.killed_s is None or now - member.killed_s > limit_s):
                return f"{silence(member, limit_s)}; see its log (cluster.silence_timeout_s raises the limit)"
        still_s = self._stall.still_s(now)
        if phase.kind == "paused" or still_s <= STILL_TIMES * limit_s:
            return None
        return (
            f"all replicas are alive, yet nothing has moved for {still_s:.0f} s while {phase.kind}, waiting for "
            f"{', '.join(sorted(self._phases.waiting | self._phases.writing))}; see the logs "
            "(cluster.silence_timeout_s raises the limit)"
        )

    def disk_problem(self, doing: str, doing_s: float, now: float) -> str | None:
        """Return the reason to abort the job if the coordinator's own work on a disk takes too long."""
        if not doing:
            return None
        if doing_s <= self._cluster.work_timeout_s:
            self._stall.restart(now)
            return None
        return (
            f"coordinator-0 has been {doing} for {doing_s:.0f} s; check the disk or store "
            "(cluster.work_timeout_s raises the limit)"
        )

    def _lateness(self, now: float) -> str | None:
        # Replicas that have joined wait for the missing ones; only the latter are late.
        missing = self._membership.missing
        limit_s = self._cluster.start_timeout_s
        if now <= self._deadline or (not missing and self._stall.still_s(now) <= limit_s):
            return None
        return (
            f"{'not joined' if missing else 'not ready'} after {limit_s:g} s: "
            f"{', '.join(missing or self._membership.unready)}; see their logs "
            "(cluster.start_timeout_s raises the limit)"
        )


def silence(member: Member, limit_s: float) -> str:
    """Return a clause about a silent replica."""
    return f"{_described(member)} has shown no progress for {limit_s:g} s"


def _described(member: Member) -> str:
    return f"{member.name} (process {member.process.pid} on {member.host})"
