"""A coordinator's state machine without its edge: the test passes events, sets the clock, and gets the effects."""

from typing import Any

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.control.membership import Member
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.coordinator import machine_of
from persia_cli.roles.coordinator.state import (
    Arrived,
    Effect,
    EndReached,
    Event,
    JobOrigin,
    Reply,
    Signalled,
    Start,
    Task,
    TaskEnded,
    TimePassed,
    Write,
)
from persia_cli.version import __version__
from persia_cli.wire.job_messages import Heartbeat, Hello, Ready, ReplicaUsage
from persia_cli.wire.message import Message, ProcessId, Sender
from persia_cli.wire.messages import PROTOCOL
from persia_cli.wire.process import this_process
from persia_cli.wire.server import Peer

IDLE = ReplicaUsage(0.0, 0)


class Coordination:
    """A coordinator, and all of its effects so far; each method passes one event and returns its effects."""

    def __init__(
        self,
        run: Run,
        job: Job,
        tracker: EvaluationTracker | None = None,
        expected: dict[str, int] | None = None,
        saved: str = "",
    ) -> None:
        """`expected` replaces the replicas that the run needs."""
        origin = JobOrigin(this_process(), "here", saved)
        self.machine = machine_of(run, job, tracker or EvaluationTracker(), origin)
        self.state, self.now = self.machine.state, 0.0
        if expected is not None:
            self.state.membership.expected = expected
            names = {f"{role}-{index}" for role, count in expected.items() for index in range(count)}
            phases = self.state.phases
            phases.participants = {kind: taking & names for kind, taking in phases.participants.items()}
        self.effects: list[Effect] = []
        self._requests = 0

    def handle(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event)
        self.effects += effects
        return effects

    def send(self, peer: Peer, message: Message) -> list[Effect]:
        return self.handle(Arrived(self.now, peer, message))

    def wait(self, seconds: float = 0.0, doing: str = "", doing_s: float = 0.0) -> list[Effect]:
        self.now += seconds
        return self.handle(TimePassed(self.now, doing, doing_s))

    def end_task(self, task: Task, result: Any = None) -> list[Effect]:
        return self.handle(TaskEnded(self.now, task, result))

    def signal(self, name: str) -> list[Effect]:
        return self.handle(Signalled(self.now, name))

    def end(self, why: str) -> list[Effect]:
        return self.handle(EndReached(self.now, why))

    def peer(self, name: str) -> Peer:
        """A further request of a replica."""
        self._requests += 1
        return Peer(name.encode(), self._requests)

    def hello(self, role: str, index: int, process: ProcessId, host: str = "here") -> list[Effect]:
        message = Hello(role, index, process, host, __version__, PROTOCOL, f"tcp://h:{process.pid}")
        return self.send(self.peer(f"{role}-{index}"), message)

    def sender(self, name: str) -> Sender:
        role, _, index = name.rpartition("-")
        return Sender(role, int(index), self.member(name).incarnation)

    def member(self, name: str) -> Member:
        role, _, index = name.rpartition("-")
        return self.state.membership.members[role, int(index)]

    def join_all(self) -> None:
        """Have every replica join, in the processes 101, 102, …"""
        names = [(role, index) for role, count in self.state.membership.expected.items() for index in range(count)]
        for number, (role, index) in enumerate(names, 101):
            self.hello(role, index, ProcessId(number))

    def begin(self) -> list[Effect]:
        """Have every replica join and be ready; return the effects of the last message."""
        self.join_all()
        effects: list[Effect] = []
        for member in list(self.state.membership.members.values()):
            effects = self.send(self.peer(member.name), Ready(self.sender(member.name), 0))
        return effects

    def beat(self, name: str, doing: str = "", doing_s: float = 0.0, heard: int = 0) -> list[Effect]:
        return self.send(self.peer(name), Heartbeat(self.sender(name), doing, doing_s, IDLE, heard))

    def to(self, peer: Peer) -> list[Message]:
        """The answers to a request."""
        return [each.message for each in self.effects if isinstance(each, Reply) and each.peer == peer]

    @property
    def events(self) -> list[dict[str, Any]]:
        return events_in(self.effects)

    @property
    def started(self) -> list[Task]:
        return [each.task for each in self.effects if isinstance(each, Start)]


def events_in(effects: list[Effect]) -> list[dict[str, Any]]:
    """The lines that effects write."""
    return [each.fields for each in effects if isinstance(each, Write)]


def event(**fields: Any) -> Write:
    """The effect of an event in the record."""
    return Write("events.jsonl", fields)
