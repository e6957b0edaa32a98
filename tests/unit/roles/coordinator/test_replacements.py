"""Deaths count for the present process of a replica only."""

from types import SimpleNamespace
from typing import cast

import pytest

from persia_cli.errors import WireError
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.joining import Joining
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.wire.job_messages import Ack, Death, Leave, Verdict
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer
from tests.support.coordination import Coordination
from tests.support.runs import make_run

LOADER, PEER = ("data-loader", 0), Peer(b"supervisor of data-loader-0", 1)
FIRST = ProcessId(7, began=100, place="a node")
LATER = ProcessId(7, began=200, place="a node")
"""The process of the next container, which has the same number."""
ELSEWHERE = ProcessId(7, began=100, place="another node")
KILLED = -9


class RecoveringJob(Coordination):
    """A job with one data loader that trains."""

    def __init__(self) -> None:
        super().__init__(make_run(recovery={"max_restarts": 5}), Job("train", "run", None, 32, 0, 4, 0))
        self.membership = self.context.membership
        self.membership.expected = {"data-loader": 1}
        self.context.phases.advance()
        saving = cast(Saving, SimpleNamespace(note_death=lambda name, how: None))
        self.replacements = Replacements(self.context, saving)
        save_requests = SaveRequests(self.context)
        self.shutdown = Shutdown(
            self.context, Joining(self.context, self.replacements), save_requests, Recordings(self.context)
        )

    def join(self, process: ProcessId) -> int:
        return self.membership.join(*LOADER, process, "shop-data-loader-0-0", "", now=self.now).incarnation

    def die(self, process: ProcessId) -> Verdict:
        self.replacements.on_death(PEER, Death(*LOADER, process, KILLED))
        return cast(Verdict, self.replies.sent[-1][1])


def test_containers_with_the_same_process_number_die_once_each() -> None:
    job = RecoveringJob()
    assert job.join(FIRST) == 1
    verdict = job.die(FIRST)
    assert verdict.restart
    assert job.die(FIRST) is verdict  # a repeat
    assert job.join(LATER) == 2
    assert job.die(FIRST) is verdict  # a late repeat
    assert not job.membership.members[LOADER].died
    assert job.die(LATER).restart
    assert job.membership.members[LOADER].died
    assert job.join(ProcessId(7, began=300, place="a node")) == 3
    assert [event["event"] for event in job.events.written] == ["died", "died"]


@pytest.mark.parametrize("other", [LATER, ELSEWHERE])
def test_a_process_with_only_the_same_number_is_refused(other: ProcessId) -> None:
    job = RecoveringJob()
    job.join(FIRST)
    with pytest.raises(WireError, match=r"process that ended, 7, is not that of data-loader-0, process 7 on shop-data"):
        job.die(other)
    with pytest.raises(WireError, match=r"^data-loader-0, process 7, is not in this job$"):
        job.shutdown.on_leave(PEER, Leave(*LOADER, other, "SIGTERM", serves=False))
    assert job.context.ending is None
    assert not job.membership.members[LOADER].died
    job.shutdown.on_leave(PEER, Leave(*LOADER, FIRST, "SIGTERM", serves=False))
    assert [message for _, message in job.replies.sent] == [Ack()]
    assert job.context.ending is not None
    assert job.context.ending.signal == "SIGTERM"
