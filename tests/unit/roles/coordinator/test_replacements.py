"""The processes that may join, and the deaths that count: those of the present process of a replica."""

import socket
from types import SimpleNamespace
from typing import cast

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.control.membership import Member, Membership
from persia_cli.errors import WireError
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.joining import GONE_S, Joining
from persia_cli.roles.coordinator.readiness import pinning_warnings
from persia_cli.roles.coordinator.recordings import Recordings
from persia_cli.roles.coordinator.replacements import Replacements
from persia_cli.roles.coordinator.save_requests import SaveRequests
from persia_cli.roles.coordinator.saving import Saving
from persia_cli.roles.coordinator.shutdown import Shutdown
from persia_cli.version import __version__
from persia_cli.wire.job_messages import Ack, Death, Hello, Leave, Verdict, Welcome
from persia_cli.wire.message import Message, ProcessId
from persia_cli.wire.messages import PROTOCOL, Refused
from persia_cli.wire.place import own_place
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
        save_requests = SaveRequests(self.context, "")
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


def test_pins_of_each_machine_are_compared_by_themselves() -> None:
    words = [
        "conf=synthetic",
        "cluster=local",
        "cluster.nn_workers=3",
        "train.batch_size=3",
        "cluster.pin={coordinator: 0, nn_worker: 0}",
    ]
    membership = Membership({"nn-worker": 3})
    run = compose_run(words)
    places = (own_place(), "", "")
    for rank, (place, host) in enumerate(zip(places, (socket.gethostname(), "far", "far"), strict=True)):
        membership.join("nn-worker", rank, ProcessId(7, 5, place), host, "", 0.0)
        found = [each.partition(", and wait")[0] for each in pinning_warnings(run, membership)]
        expected = [f"coordinator-0, nn-worker-0 share processors 0 of {socket.gethostname()}"]
        assert found == expected + ["nn-worker-1, nn-worker-2 share processors 0 of far"] * (rank == 2)


class JoiningJob(Coordination):
    """A job whose replicas join, and the replicas that have gone."""

    def __init__(self, restart: bool = True) -> None:
        run = compose_run(["conf=synthetic", "cluster=local"])
        super().__init__(run, Job("train", "run", None, 1, 0, 1, 0))
        self.gone = list[str]()
        self.membership = self.context.membership
        self.membership.expected = {"data-loader": 1, "nn-worker": 1}

        def judge(member: Member) -> Verdict:
            self.gone.append(member.name)
            if restart:
                self.membership.lose(member.role, member.index, self.now)
            return Verdict(restart, 0.0, "its memory is lost")

        self.joining = Joining(self.context, cast(Replacements, SimpleNamespace(judge_gone=judge)))

    def hello(self, role: str, pid: int) -> Peer:
        peer = Peer(f"{role}#{pid}".encode(), 1)
        self.joining.on_hello(peer, Hello(role, 0, ProcessId(pid), "here", __version__, PROTOCOL, f"tcp://h:{pid}"))
        return peer

    def answers(self, peer: Peer) -> list[Message]:
        return self.replies.to(peer)

    def wait(self, seconds: float, beats: bool = False) -> None:
        for _ in range(int(seconds * 10)):
            self.now += 0.1
            if beats:
                self.membership.members["data-loader", 0].last_seen_s = self.now
            self.joining.tick()


def begun(restart: bool = True) -> JoiningJob:
    job = JoiningJob(restart)
    job.hello("data-loader", 1)
    job.hello("nn-worker", 2)
    return job


def test_only_the_process_that_was_silent_died_of_that() -> None:
    job = RecoveringJob()
    job.join(FIRST)
    job.membership.members[LOADER].killed_s = job.now
    job.die(FIRST)
    job.die(LATER)  # before it could join
    causes = [event["cause"] for event in job.events.written]
    assert causes == ["was killed, since it was silent", "was killed by SIGKILL (out of memory?)"]


def test_a_process_in_the_place_of_one_that_is_silent_is_let_in() -> None:
    job = begun()
    newer = job.hello("data-loader", 3)
    job.wait(GONE_S - 0.5)
    assert (job.gone, job.answers(newer)) == ([], [])
    job.wait(1.0)
    assert job.gone == ["data-loader-0"]
    [welcome] = job.answers(newer)
    assert isinstance(welcome, Welcome)
    assert welcome.incarnation == 2


def test_a_process_in_the_place_of_one_whose_memory_is_lost_is_refused() -> None:
    job = begun(restart=False)
    newer = job.hello("data-loader", 3)
    job.wait(GONE_S + 0.5)
    assert job.answers(newer) == [Refused("its memory is lost")]


def test_a_second_process_of_a_running_replica_is_refused() -> None:
    job = begun()
    second = job.hello("data-loader", 3)
    job.wait(GONE_S + 1.0, beats=True)
    [refused] = job.answers(second)
    assert isinstance(refused, Refused)
    assert (refused.exit_code, job.gone) == (2, [])
    assert "data-loader-0 is already running as process 1 on here" in refused.reason


def test_before_the_job_begins_the_newest_process_has_the_place() -> None:
    job = JoiningJob()
    older = job.hello("data-loader", 1)
    newer = job.hello("data-loader", 3)
    [refused] = job.answers(older)
    assert isinstance(refused, Refused)
    job.hello("nn-worker", 2)
    [welcome] = job.answers(newer)
    assert isinstance(welcome, Welcome)
    assert (welcome.incarnation, job.gone) == (1, [])
