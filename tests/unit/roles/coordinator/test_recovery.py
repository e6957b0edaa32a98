"""Which deaths the coordinator takes for those of its replicas' present processes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from persia_cli.control.membership import Membership
from persia_cli.errors import WireError
from persia_cli.roles.coordinator.recovery import RecoveryHandler
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.wire.job_messages import Ack, Death, Leave, Verdict
from persia_cli.wire.message import ProcessId
from persia_cli.wire.server import Peer
from tests.support.runs import make_run

LOADER, PEER = ("data-loader", 0), Peer(b"supervisor of data-loader-0", 1)
FIRST = ProcessId(7, began=100, place="a node")
LATER = ProcessId(7, began=200, place="a node")
"""That of the next container: its process has the same number."""
ELSEWHERE = ProcessId(7, began=100, place="another node")
KILLED = -9


class Coordinator:
    """What the coordinator has of a job with one data loader, and what it has answered and recorded."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.events: list[dict[str, Any]] = []
        self.ended: list[str] = []
        self.membership = Membership({"data-loader": 1})
        server: Any = SimpleNamespace(reply=lambda peer, message: self.answers.append(message))
        self.dismissal = Shutdown(
            server,
            cast(Any, None),
            self.membership,
            cast(Any, SimpleNamespace(take_back=lambda name: 3)),
            clock=lambda: 1.0,
            give_up=lambda why, code: self.ended.append(why),
            save_and_end=lambda signal, name: self.ended.append(signal),
            recordings=cast(Any, None),
        )
        self.recovery = RecoveryHandler(
            server,
            make_run(recovery={"max_restarts": 5}),
            cast(Any, SimpleNamespace(current=SimpleNamespace(kind="training"))),
            cast(Any, SimpleNamespace(write=lambda **event: self.events.append(event))),
            self.dismissal,
            lambda name, how: None,
        )

    def join(self, process: ProcessId) -> int:
        return self.membership.join(*LOADER, process, "shop-data-loader-0-0", "", now=1.0).incarnation

    def die(self, process: ProcessId) -> Verdict:
        self.recovery.on_death(PEER, Death(*LOADER, process, KILLED))
        return cast(Verdict, self.answers[-1])


def test_each_container_of_a_pod_dies_once_though_their_processes_have_the_same_number() -> None:
    job = Coordinator()
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
    assert [event["event"] for event in job.events] == ["died", "died"]


@pytest.mark.parametrize("other", [LATER, ELSEWHERE])
def test_nobody_speaks_for_a_process_that_only_has_the_same_number(other: ProcessId) -> None:
    job = Coordinator()
    job.join(FIRST)
    with pytest.raises(WireError, match=r"process that ended, 7, is not that of data-loader-0, process 7 on shop-data"):
        job.die(other)
    with pytest.raises(WireError, match=r"^data-loader-0, process 7, is not in this job$"):
        job.dismissal.on_leave(PEER, Leave(*LOADER, other, "SIGTERM", serves=False))
    assert job.ended == []
    assert not job.membership.members[LOADER].died
    job.dismissal.on_leave(PEER, Leave(*LOADER, FIRST, "SIGTERM", serves=False))
    assert job.answers == [Ack()]
    assert job.ended[0] == "SIGTERM"
