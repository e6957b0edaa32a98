"""What a job is given up for, in whole sentences."""

from persia_cli.control.membership import Membership
from persia_cli.control.movement import Movement
from persia_cli.control.phases import PhaseMachine, schedule
from persia_cli.roles.vigil import STILL_TIMES, Vigil
from tests.support.runs import make_run

CLUSTER = make_run(cluster={"kind": "local", "start_timeout_s": 20, "silence_timeout_s": 5}).cluster


class Watched:
    """A job of a server and a rank; its clock begins at 0."""

    def __init__(self) -> None:
        self.membership = Membership({"embedding-server": 1, "nn-worker": 1})
        everyone = frozenset({"embedding-server-0", "nn-worker-0"})
        self.phases = PhaseMachine(schedule(4, 0, None, None, False), {"training": everyone, "done": everyone})
        self.movement = Movement()
        self.vigil = Vigil(CLUSTER, self.membership, self.phases, self.movement, now=0.0)

    def join(self, *roles: str, ready: bool = True, now: float = 0.0) -> None:
        for number, role in enumerate(roles):
            self.membership.join(role, 0, 40 + number, "here", "", now).ready = ready


def test_replicas_that_do_not_join_in_time_are_late_and_then_those_that_are_not_ready() -> None:
    watched = Watched()
    watched.join("embedding-server", ready=False)
    assert watched.vigil.complaint(20.0) is None
    late = "after 20 s: {}; see their logs (cluster.start_timeout_s raises the limit)"
    assert watched.vigil.complaint(20.1) == f"not joined {late.format('nn-worker-0')}"
    watched.join("nn-worker")
    assert watched.vigil.complaint(20.1) == f"not ready {late.format('embedding-server-0')}"
    assert watched.vigil.silent(1000.0) == [], "before the job begins, who waits need not speak"


def test_silent_and_stuck_replicas_are_named_but_not_at_the_end() -> None:
    watched = Watched()
    watched.join("embedding-server", "nn-worker", now=100.0)
    watched.phases.advance()
    watched.movement.restart(100.0)
    assert watched.vigil.complaint(105.0) is None
    silent = (
        "embedding-server-0 (process 40 on here) has shown no progress for 5 s; see its log "
        "(cluster.silence_timeout_s raises the limit)"
    )
    assert watched.vigil.complaint(105.1) == silent
    watched.join("embedding-server", "nn-worker", now=105.0)
    watched.membership.members["nn-worker", 0].progress_age_s = 6.0
    assert str(watched.vigil.complaint(106.0)).startswith("nn-worker-0 (process 41 on here)")
    watched.phases.advance()
    assert watched.vigil.complaint(106.0) is None
    assert [member.name for member in watched.vigil.silent(106.0)] == ["nn-worker-0"]


def test_a_job_in_which_nothing_moves_names_whom_it_waits_for() -> None:
    watched = Watched()
    watched.phases.advance()
    watched.movement.restart(100.0)
    limit = 5 * STILL_TIMES
    assert watched.vigil.complaint(100.0 + limit) is None
    assert watched.vigil.complaint(101.0 + limit) == (
        "all replicas are alive, yet nothing has moved for 21 s while training, waiting for embedding-server-0, "
        "nn-worker-0; see the logs (cluster.silence_timeout_s raises the limit)"
    )
