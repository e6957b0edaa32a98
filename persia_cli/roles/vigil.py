"""What a job is given up for: replicas that are late, silent or stuck, and a job in which nothing moves."""

from persia_cli.config.schema import Cluster
from persia_cli.control.membership import Member, Membership
from persia_cli.control.movement import Movement
from persia_cli.control.phases import PhaseMachine

STILL_TIMES = 4
"""A job in which nothing moves is given up after this many times `cluster.silence_timeout_s`."""


class Vigil:
    """Watches over the replicas of one job; `now` is passed in, in seconds."""

    def __init__(
        self, cluster: Cluster, membership: Membership, phases: PhaseMachine, movement: Movement, now: float
    ) -> None:
        self._cluster = cluster
        self._membership = membership
        self._phases = phases
        self._movement = movement
        self._deadline = now + cluster.start_timeout_s

    def silent(self, now: float) -> list[Member]:
        """Return the replicas that have fallen silent or are stuck, of a job that has begun."""
        return self._membership.silent(now, self._cluster.silence_timeout_s) if self._phases.current else []

    def complaint(self, now: float) -> str | None:
        """Return why the job is to be given up, if it is; replicas that are silent at its end do no harm."""
        phase = self._phases.current
        if phase is None:
            return self._lateness() if now > self._deadline else None
        if phase.kind == "done":
            return None
        limit_s = self._cluster.silence_timeout_s
        for member in self.silent(now):
            return (
                f"{member.name} (process {member.pid} on {member.host}) has shown no progress for {limit_s:g} s; "
                "see its log (cluster.silence_timeout_s raises the limit)"
            )
        still_s = self._movement.still_s(now)
        if phase.kind == "paused" or still_s <= STILL_TIMES * limit_s:
            return None
        return (
            f"all replicas are alive, yet nothing has moved for {still_s:.0f} s while {phase.kind}, waiting for "
            f"{', '.join(sorted(self._phases.waiting))}; see the logs (cluster.silence_timeout_s raises the limit)"
        )

    def _lateness(self) -> str:
        # Those that have joined wait for those that have not; only the latter are late.
        missing = self._membership.missing
        return (
            f"{'not joined' if missing else 'not ready'} after {self._cluster.start_timeout_s:g} s: "
            f"{', '.join(missing or self._membership.unready)}; see their logs "
            "(cluster.start_timeout_s raises the limit)"
        )
