"""The processes that may join, and the deaths that count: those of the present process of a replica."""

import socket

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.control.membership import Membership
from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.members import pinning_warnings
from persia_cli.roles.coordinator.state import GONE_S, JobOrigin, Reply, Signalled
from persia_cli.version import __version__
from persia_cli.wire.job_messages import Beat, Change, Death, Fail, Hello, Leave, NextItem, Ready, Verdict, Welcome
from persia_cli.wire.message import Message, ProcessId, Sender
from persia_cli.wire.messages import PROTOCOL, Ack, Refused
from persia_cli.wire.process import memory_domain, this_process
from tests.support.coordination import Coordination, event
from tests.support.runs import make_run

LOADER, NAME = ("data-loader", 0), "data-loader-0"
FIRST = ProcessId(7, began=100, domain="a node")
LATER = ProcessId(7, began=200, domain="a node")
"""The process of the next container, which has the same number."""
ELSEWHERE = ProcessId(7, began=100, domain="another node")
KILLED = -9


class JoiningJob(Coordination):
    """A job of a loader and a rank, whose loader has the process FIRST once it has begun."""

    def __init__(self) -> None:
        run = make_run(recovery={"max_restarts": 5})
        super().__init__(run, Job("train", "run", None, 32, 0, 4, 0), expected={"data-loader": 1, "nn-worker": 1})

    def start(self) -> None:
        self.hello(*LOADER, FIRST, "shop-data-loader-0-0")
        self.hello("nn-worker", 0, ProcessId(9))
        for name in (NAME, "nn-worker-0"):
            self.send(self.peer(name), Ready(self.sender(name), 0))

    def answer(self, name: str, message: Message) -> Message:
        """The only answer to a message."""
        peer = self.peer(name)
        self.send(peer, message)
        [answer] = self.to(peer)
        return answer

    def die(self, process: ProcessId) -> Message:
        return self.answer("supervisor", Death(*LOADER, process, KILLED))

    @property
    def deaths(self) -> list[str]:
        return [each["cause"] for each in self.events if each["event"] == "died"]


def test_all_are_welcomed_when_the_last_one_is_there() -> None:
    job = JoiningJob()
    assert job.hello(*LOADER, FIRST) == []
    welcomes = [each for each in job.hello("nn-worker", 0, ProcessId(9)) if isinstance(each, Reply)]
    assert [each.peer.identity for each in welcomes] == [b"data-loader-0", b"nn-worker-0"]
    for each in welcomes:
        assert isinstance(each.message, Welcome)
        assert each.message.addresses == {"data-loader": ["tcp://h:7"], "nn-worker": ["tcp://h:9"]}


def test_another_version_is_refused() -> None:
    job = JoiningJob()
    peer = job.peer(NAME)
    text = (
        f"data-loader-0 is persia 0.0 (protocol {PROTOCOL}), the coordinator is {__version__} (protocol {PROTOCOL}); "
        "install the same version everywhere"
    )
    assert job.send(peer, Hello(*LOADER, FIRST, "here", "0.0", PROTOCOL, "")) == [Reply(peer, Refused(text, 2))]


def test_a_second_process_of_a_running_replica_is_refused() -> None:
    job = JoiningJob()
    job.start()
    [refused] = [each.message for each in job.hello(*LOADER, LATER) if isinstance(each, Reply)]
    assert refused == Refused("data-loader-0 is already running as process 7 on shop-data-loader-0-0", 2)
    assert job.member(NAME).process == FIRST


def test_before_the_job_begins_the_newest_process_has_the_place() -> None:
    job = JoiningJob()
    job.hello(*LOADER, FIRST)
    [refused] = [each.message for each in job.hello(*LOADER, LATER) if isinstance(each, Reply)]
    assert isinstance(refused, Refused)
    welcome = [each.message for each in job.hello("nn-worker", 0, ProcessId(9)) if isinstance(each, Reply)]
    assert [isinstance(each, Welcome) and each.incarnation for each in welcome] == [1, 1]
    assert job.member(NAME).process == LATER


def test_before_the_first_phase_a_second_process_shows_that_a_silent_one_has_ended() -> None:
    job = JoiningJob()
    job.hello(*LOADER, FIRST, "shop-data-loader-0-0")
    job.hello("nn-worker", 0, ProcessId(9))
    alive, late = job.peer(NAME), job.peer(NAME)
    hello = Hello(*LOADER, LATER, "shop-data-loader-0-0", __version__, PROTOCOL, "tcp://h:7")
    running = "data-loader-0 is already running as process 7 on shop-data-loader-0-0"
    assert job.send(alive, hello) == [Reply(alive, Refused(running, 2))], "the first may live"
    job.now += GONE_S + 0.1
    text = "data-loader-0 (process 7 on shop-data-loader-0-0) has ended before the first phase: "
    text += "another process has its name"
    failed = event(event="phase", phase="failed", error=text, exit_code=1)
    assert job.send(late, hello) == [failed, Reply(late, Refused(text))]


def test_the_job_begins_when_all_are_ready() -> None:
    job = JoiningJob()
    job.start()
    assert [(each["event"], each.get("phase")) for each in job.events] == [("ready", None), ("phase", "training")]
    assert [each["pid"] for each in job.events[0]["replicas"]][1:] == [7, 9]


def test_containers_with_the_same_process_number_die_once_each() -> None:
    job = JoiningJob()
    job.start()
    assert job.member(NAME).incarnation == 1
    verdict = job.die(FIRST)
    assert verdict == Verdict(True, 0.0, "")
    assert job.die(FIRST) is verdict, "a repeat"
    job.hello(*LOADER, LATER)
    assert job.member(NAME).incarnation == 2
    job.die(FIRST)
    assert not job.member(NAME).died, "a late repeat"
    assert job.die(LATER) == Verdict(True, 1.0, "")
    assert job.member(NAME).died
    job.hello(*LOADER, ProcessId(7, began=300, domain="a node"))
    assert job.member(NAME).incarnation == 3
    assert len(job.deaths) == 2


def test_a_death_is_announced_and_its_steps_are_assigned_again() -> None:
    job = JoiningJob()
    job.start()
    job.send(job.peer(NAME), NextItem(Sender(*LOADER, 1), 0))
    job.die(FIRST)
    job.hello(*LOADER, LATER)

    def changes(heard: int) -> tuple[Change, ...]:
        [beat] = [each.message for each in job.beat("nn-worker-0", heard=heard) if isinstance(each, Reply)]
        assert isinstance(beat, Beat)
        return beat.changes

    assert changes(0) == (Change(1, *LOADER, FIRST, False, "tcp://h:7"),)
    job.now += 3.0
    job.send(job.peer(NAME), Ready(job.sender(NAME), 0))
    assert changes(1) == (Change(2, *LOADER, FIRST, True, "tcp://h:7"),)
    [recovered] = [each for each in job.events if each["event"] == "recovered"]
    assert (recovered["seconds"], recovered["repeated"]) == (3.0, {"steps": 4})
    assert isinstance(job.answer(NAME, NextItem(Sender(*LOADER, 1), 0)), Refused), "from the old process"


@pytest.mark.parametrize("other", [LATER, ELSEWHERE])
def test_a_process_with_only_the_same_number_is_refused(other: ProcessId) -> None:
    job = JoiningJob()
    job.start()
    text = "the process that ended, 7, is not that of data-loader-0, process 7 on shop-data-loader-0-0"
    assert job.die(other) == Refused(text)
    leaving = Leave(*LOADER, other, "SIGTERM", serves=False)
    assert job.answer(NAME, leaving) == Refused("data-loader-0, process 7, is not in this job")
    assert job.state.ending is None
    peer = job.peer(NAME)
    assert job.send(peer, Leave(*LOADER, FIRST, "SIGTERM", serves=True))[:2] == [
        Reply(peer, Ack()),
        event(event="ending", signal="SIGTERM", replica=NAME, grace_s=job.state.run.checkpoint.grace_s),
    ]


def test_only_the_process_that_was_silent_died_of_that() -> None:
    job = JoiningJob()
    job.start()
    job.member(NAME).killed_s = job.now
    job.die(FIRST)
    job.die(LATER)  # before it could join
    assert job.deaths == ["was killed, since it was silent", "was killed by SIGKILL (out of memory?)"]


def test_a_job_that_ends_refuses_those_that_wait_to_join() -> None:
    job = JoiningJob()
    job.hello(*LOADER, FIRST)
    job.handle(Signalled(job.now, "SIGTERM"))
    assert job.state.stop_reason == "there was nothing to save"
    effects = job.end("it was stopped")
    assert [each.message for each in effects if isinstance(each, Reply)] == [
        Refused("the job has ended: it was stopped")
    ]
    late = [each.message for each in job.hello("nn-worker", 0, ProcessId(9)) if isinstance(each, Reply)]
    assert late == [Refused("the job has ended: it was stopped")]


def test_a_failure_after_the_end_is_recorded_changes_nothing() -> None:
    job = JoiningJob()
    job.start()
    assert job.end("it was stopped")[0] == event(event="phase", phase="stopped", step=0)
    peer = job.peer(NAME)
    assert job.send(peer, Fail(job.sender(NAME), "it was stopped too", 1)) == [Reply(peer, Ack())]
    assert job.state.failure is None


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
    places = (memory_domain(), "", "")
    coordinator = JobOrigin(this_process(), socket.gethostname())
    for rank, (place, host) in enumerate(zip(places, (socket.gethostname(), "far", "far"), strict=True)):
        membership.join("nn-worker", rank, ProcessId(7, 5, place), host, "", 0.0)
        found = [each.partition(", and wait")[0] for each in pinning_warnings(run, membership, coordinator)]
        expected = [f"coordinator-0, nn-worker-0 share processors 0 of {socket.gethostname()}"]
        assert found == expected + ["nn-worker-1, nn-worker-2 share processors 0 of far"] * (rank == 2)
