"""A coordinator's context without its loop: answers and events are stored, and the test sets the clock."""

from typing import Any, cast

from persia_cli.config.schema import Run
from persia_cli.control.evaluation_tracker import EvaluationTracker
from persia_cli.observe.journal import Journal
from persia_cli.observe.record import RunRecord
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.context import JobContext
from persia_cli.wire.message import Message
from persia_cli.wire.server import Peer, Server


class Replies:
    """The answers of a server, with their peers."""

    def __init__(self) -> None:
        self.sent: list[tuple[Peer, Message]] = []

    def reply(self, peer: Peer, message: Message) -> None:
        self.sent.append((peer, message))

    def to(self, peer: Peer) -> list[Message]:
        return [message for to, message in self.sent if to == peer]


class Events:
    """The events of a job."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, **event: Any) -> None:
        self.written.append(event)


class Coordination:
    """A context, and the answers and events of its components."""

    def __init__(self, run: Run, job: Job) -> None:
        self.replies, self.events, self.now = Replies(), Events(), 0.0
        self.context = JobContext(
            cast(Server, self.replies),
            run,
            job,
            events=cast(Journal, self.events),
            record=cast(RunRecord, None),
            tracker=EvaluationTracker(),
            now=lambda: self.now,
            wake=lambda: None,
            is_saved=False,
        )

    def close(self) -> None:
        """Finish the work on disks, and handle its results."""
        self.context.disk.close()
        self.context.disk.tick()
