"""The reasons for aborting a job, in whole sentences, and the age of the work of its replicas."""

from persia_cli.control.membership import Membership, StallDetector
from persia_cli.control.phases import PhaseMachine, schedule
from persia_cli.roles.coordinator.liveness import STILL_TIMES, LivenessMonitor
from persia_cli.roles.session import Work
from persia_cli.wire.message import ProcessId
from persia_cli.wire.reports import Counters
from tests.support.runs import make_run

CLUSTER = make_run(
    cluster={"kind": "local", "start_timeout_s": 20, "silence_timeout_s": 5, "work_timeout_s": 60}
).cluster


class Watched:
    """A job of a server and a rank; its clock begins at 0."""

    def __init__(self) -> None:
        self.membership = Membership({"embedding-server": 1, "nn-worker": 1})
        everyone = frozenset({"embedding-server-0", "nn-worker-0"})
        self.phases = PhaseMachine(schedule(4, 0, None, None, False), {"training": everyone, "done": everyone})
        self.stall = StallDetector()
        self.liveness = LivenessMonitor(CLUSTER, self.membership, self.phases, self.stall, now=0.0)

    def join(self, *roles: str, ready: bool = True, now: float = 0.0) -> None:
        for number, role in enumerate(roles):
            self.membership.join(role, 0, ProcessId(40 + number), "here", "", now).ready = ready

    def at_work(self, doing: str, doing_s: float, now: float) -> None:
        """The rank reports its work, and both replicas give signs of life."""
        for member in self.membership.members.values():
            member.last_seen_s = now
        self.liveness.note(self.membership.members["nn-worker", 0], doing, doing_s, Counters(), now)


def test_replicas_that_do_not_join_or_get_ready_in_time_are_late() -> None:
    watched = Watched()
    watched.join("embedding-server", ready=False)
    assert watched.liveness.problem(20.0) is None
    late = "after 20 s: {}; see their logs (cluster.start_timeout_s raises the limit)"
    assert watched.liveness.problem(20.1) == f"not joined {late.format('nn-worker-0')}"
    watched.join("nn-worker")
    assert watched.liveness.problem(20.1) == f"not ready {late.format('embedding-server-0')}"
    assert watched.liveness.silent(1000.0) == [], "before the job begins, waiting peers need not send"


def test_silent_and_stuck_replicas_are_named_but_not_at_the_end() -> None:
    watched = Watched()
    watched.join("embedding-server", "nn-worker", now=100.0)
    watched.phases.advance()
    watched.stall.restart(100.0)
    assert watched.liveness.problem(105.0) is None
    silent = (
        "embedding-server-0 (process 40 on here) has shown no progress for 5 s; see its log "
        "(cluster.silence_timeout_s raises the limit)"
    )
    assert watched.liveness.problem(105.1) == silent
    silenced = watched.liveness.hung(105.1)
    assert [member.name for member in silenced] == ["embedding-server-0", "nn-worker-0"]
    for member in silenced:
        member.killed_s = 105.1
    assert watched.liveness.hung(105.2) == []
    assert watched.liveness.problem(110.1) is None, "its supervisor reports its death"
    assert watched.liveness.problem(110.2) == silent
    for member in silenced:
        member.killed_s = None
    watched.join("embedding-server", "nn-worker", now=105.0)
    watched.at_work("training step 7", 60.0, now=106.0)
    assert watched.liveness.problem(106.0) is None
    watched.at_work("training step 7", 60.5, now=106.0)
    assert watched.liveness.problem(106.0) == (
        "nn-worker-0 (process 41 on here) has been training step 7 for 60 s; see its log "
        "(cluster.work_timeout_s raises the limit)"
    )
    watched.phases.advance()
    assert watched.liveness.problem(106.0) is None
    assert [member.name for member in watched.liveness.silent(106.0)] == ["nn-worker-0"]


def test_a_stalled_job_names_the_replicas_it_waits_for() -> None:
    watched = Watched()
    watched.phases.advance()
    watched.stall.restart(100.0)
    limit = 5 * STILL_TIMES
    assert watched.liveness.problem(100.0 + limit) is None
    assert watched.liveness.problem(101.0 + limit) == (
        "all replicas are alive, yet nothing has moved for 21 s while training, waiting for embedding-server-0, "
        "nn-worker-0; see the logs (cluster.silence_timeout_s raises the limit)"
    )


def test_a_start_takes_as_long_as_replicas_are_seen_to_be_at_work() -> None:
    watched = Watched()
    watched.join("embedding-server", "nn-worker", ready=False)
    for second in range(0, 100, 10):
        watched.at_work("compiling the network", float(second % 50), now=float(second))
        assert watched.liveness.problem(float(second)) is None
    watched.at_work("", 0.0, now=109.0)
    assert watched.liveness.problem(110.0) is None
    assert str(watched.liveness.problem(110.5)).startswith("not ready after 20 s: embedding-server-0, nn-worker-0;")
    watched.at_work("reading the dense weights", 61.0, now=105.0)
    assert str(watched.liveness.problem(105.0)).startswith(
        "nn-worker-0 (process 41 on here) has been reading the dense"
    )


def test_long_waits_are_reported_every_ten_seconds() -> None:
    watched = Watched()
    watched.join("embedding-server", "nn-worker")
    watched.at_work("compiling the network", 9.9, now=100.0)
    assert watched.liveness.waiting(100.0) is None
    watched.at_work("compiling the network", 10.4, now=100.5)
    told = {"replica": "nn-worker-0", "doing": "compiling the network"}
    assert watched.liveness.waiting(100.5) == told | {"seconds": 10}
    assert watched.liveness.waiting(110.0) is None
    watched.at_work("compiling the network", 20.4, now=110.5)
    assert watched.liveness.waiting(110.5) == told | {"seconds": 20}
    watched.at_work("", 0.0, now=130.0)
    assert watched.liveness.waiting(130.0) is None


def test_the_age_of_work_begins_with_each_piece_and_ends_with_it() -> None:
    work = Work()
    assert work.age({}, 5.0) == ("", 0.0)
    work.begin("training step 7")
    assert work.age({}, 10.0) == ("training step 7", 0.0)
    assert work.age({}, 14.5) == ("training step 7", 4.5)
    work.begin("training step 7")
    assert work.age({}, 15.0) == ("training step 7", 0.0)
    work.end()
    assert work.age({}, 20.0) == ("", 0.0)


def test_changing_counters_show_progress() -> None:
    work = Work()
    work.begin("writing its rows")
    assert work.age({"rows": 0}, 1.0) == work.age({"rows": 5}, 9.0) == ("writing its rows", 0.0)
    assert work.age({"rows": 5}, 12.0) == ("writing its rows", 3.0)


def test_work_within_work_has_its_own_age_and_the_other_begins_anew() -> None:
    work = Work()
    begin, end = work.nested("compiling the network")
    work.begin("training step 0")
    assert work.age({}, 0.0) == ("training step 0", 0.0)
    begin()
    assert work.age({}, 1.0) == ("compiling the network", 0.0)
    assert work.age({}, 90.0) == ("compiling the network", 89.0)
    end()
    assert work.age({}, 91.0) == ("training step 0", 0.0)
