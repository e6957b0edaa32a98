"""The members of a job: its replicas, each in its present process, and whether they live and make progress."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persia_cli.errors import WireError

if TYPE_CHECKING:
    from persia_cli.wire.message import ProcessId


class MisplacedError(WireError):
    """An error for a replica that the job does not need or already has."""

    exit_code = 2


@dataclass(slots=True)
class Member:
    """The coordinator's data about one replica."""

    role: str
    index: int
    process: "ProcessId"
    incarnation: int = 0
    host: str = ""
    address: str = ""
    ready: bool = False
    died: bool = False
    """True from the death of its process until a new one has joined."""
    lost_s: float = 0.0
    """Time at which its last process died."""
    last_seen_s: float = 0.0
    killed_s: float | None = None
    """Time at which it was killed because it was silent, until its supervisor reports that it has ended."""
    doing: str = ""
    doing_s: float = 0.0

    @property
    def name(self) -> str:
        """Replica name, such as `embedding-server-0`."""
        return f"{self.role}-{self.index}"

    def die(self, now: float) -> None:
        """Record the death of its process."""
        self.died, self.ready, self.doing, self.doing_s, self.lost_s = True, False, "", 0.0, now
        self.killed_s = None


@dataclass(slots=True)
class Membership:
    """The replicas that a job needs; `now` is given in seconds."""

    expected: dict[str, int]
    members: dict[tuple[str, int], Member] = field(default_factory=dict)

    def join(self, role: str, index: int, process: "ProcessId", host: str, address: str, now: float) -> Member:
        """Register a replica; raises MisplacedError if the job does not need it or already has it.

        The same process may register again, if the first reply was lost. A new one takes the place of one that has
        died, as the replica's next incarnation.
        """
        if role not in self.expected:
            raise MisplacedError(f"this job has no role {role!r}; it has {', '.join(self.expected)}")
        if not 0 <= index < self.expected[role]:
            raise MisplacedError(
                f"this job has {self.expected[role]} of {role}, numbered from 0, so there is no {role}-{index}"
            )
        member = self.members.get((role, index))
        if member is not None and member.died:
            lost_s, incarnation = member.lost_s, member.incarnation + 1
            member = Member(role, index, process, incarnation, host=host, address=address, lost_s=lost_s)
            self.members[role, index] = member
        if member is not None and (member.process, member.host, member.address) != (process, host, address):
            raise MisplacedError(f"{member.name} is already running as process {member.process.pid} on {member.host}")
        if member is None:
            member = Member(role, index, process, 1, host=host, address=address)
            self.members[role, index] = member
        member.last_seen_s = now
        return member

    def find(self, role: str, index: int, incarnation: int) -> Member:
        """Return the replica that sent a request; raises WireError if it never joined or is an older incarnation."""
        member = self.members.get((role, index))
        if member is None:
            raise WireError(f"{role}-{index} has not joined this job")
        if member.incarnation != incarnation:
            raise WireError(
                f"{member.name} is at incarnation {member.incarnation}, so incarnation {incarnation} is over"
            )
        if member.died:
            raise WireError(f"process {member.process.pid} of {member.name} has died")
        return member

    @property
    def missing(self) -> list[str]:
        """Names of the replicas that have not joined."""
        return [f"{r}-{i}" for r, count in self.expected.items() for i in range(count) if (r, i) not in self.members]

    @property
    def unready(self) -> list[str]:
        """Names of the replicas that have not reported ready."""
        return self.missing + [member.name for member in self.members.values() if not member.ready]

    def addresses(self) -> dict[str, list[str]]:
        """Return the address of every replica that serves others, by role, in the order of index."""
        addresses: dict[str, list[str]] = {role: [] for role in self.expected}
        for role, index in sorted(self.members):
            addresses[role].append(self.members[role, index].address)
        return addresses

    def silent(self, now: float, limit_s: float) -> list[Member]:
        """Return the replicas without a message for more than `limit_s` seconds, except dead ones."""
        return [m for m in self.members.values() if not m.died and now - m.last_seen_s > limit_s]

    def stuck(self, limit_s: float) -> list[Member]:
        """Return the replicas whose present work takes more than `limit_s` seconds."""
        return [member for member in self.members.values() if member.doing_s > limit_s]

    @property
    def replaced(self) -> list[Member]:
        """The replicas of a running job whose process has died, and whose new one is not ready yet."""
        return [member for member in self.members.values() if not member.ready and (member.died or member.lost_s)]

    @property
    def busiest(self) -> Member | None:
        """The replica whose present work takes longest, None if none works."""
        return max((m for m in self.members.values() if m.doing), key=lambda m: m.doing_s, default=None)


class StallDetector:
    """A detector of a stalled job, whose replicas are all alive but wait for each other; `now` is given in seconds.

    A change of a replica's counters is progress. The caller omits counters that change by themselves (CPU time,
    repeated messages).
    """

    def __init__(self) -> None:
        self._counters: dict[str, Any] = {}
        self._last_s = 0.0

    def observe(self, name: str, counters: Any, now: float) -> None:
        """Store a replica's counters."""
        if self._counters.get(name) != counters:
            self._counters[name] = counters
            self._last_s = now

    def restart(self, now: float) -> None:
        """Record progress that no counter shows: a new phase, or work that may take long."""
        self._last_s = now

    def still_s(self, now: float) -> float:
        """Return the seconds since the last progress."""
        return now - self._last_s


LONGEST_GAP_S = 1.0
"""Longest time between two readings of the clock that counts; callers read it several times a second."""


class RunningClock:
    """The seconds for which this process ran; `now` is in seconds of a monotonic clock.

    A debugger, a paused container or a batch system may suspend a process for minutes. In that time it received no
    messages, and the other processes were most likely suspended too.
    """

    def __init__(self, now: float) -> None:
        self._last_s = now
        self._ran_s = 0.0

    def at(self, now: float) -> float:
        """Return the seconds since the beginning; of a gap between two calls at most LONGEST_GAP_S counts."""
        self._ran_s += min(now - self._last_s, LONGEST_GAP_S)
        self._last_s = now
        return self._ran_s
