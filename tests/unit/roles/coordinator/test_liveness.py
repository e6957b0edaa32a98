"""Replicas that are late, silent or stuck, and jobs in which nothing moves: killed, or ended with a sentence."""

from persia_cli.plan.job import Job
from persia_cli.roles.coordinator.members import STILL_TIMES
from persia_cli.roles.coordinator.state import Effect, Kill, Reply
from persia_cli.wire.job_messages import Beat, Done, Next, Ready
from persia_cli.wire.message import ProcessId
from tests.support.coordination import Coordination, event
from tests.support.runs import make_run

LIMITS = {"kind": "local", "start_timeout_s": 20, "silence_timeout_s": 5, "work_timeout_s": 60}
NAMES = ("embedding-server-0", "nn-worker-0")


class Watched(Coordination):
    """A job of a server and a rank."""

    def __init__(self) -> None:
        run = make_run(cluster=LIMITS, checkpoint={"at_end": False})
        super().__init__(run, Job("train", "run", None, 128, 0, 4, 0), expected={"embedding-server": 1, "nn-worker": 1})

    def beat_all(self, seconds: float, doing: str = "", doing_s: float = 0.0) -> None:
        """Some seconds pass, and both replicas show that they are alive; the rank reports its work."""
        self.now += seconds
        self.beat("embedding-server-0")
        self.beat("nn-worker-0", doing, doing_s)


def failed(text: str) -> list[Effect]:
    return [event(event="phase", phase="failed", error=text, exit_code=1)]


def test_replicas_that_do_not_join_in_time_are_late() -> None:
    job = Watched()
    job.hello("embedding-server", 0, ProcessId(7))
    assert job.wait(20.0) == [], "those that have joined wait for the others, so they need not send"
    late = "not joined after 20 s: nn-worker-0; see their logs (cluster.start_timeout_s raises the limit)"
    assert job.wait(0.1) == failed(late)


def test_a_start_takes_as_long_as_replicas_are_seen_to_be_at_work() -> None:
    job = Watched()
    job.join_all()
    for second in range(0, 100, 10):
        job.beat_all(10.0, "compiling the network", float(second % 50))
        job.wait()
    assert job.state.failure is None
    job.beat_all(10.0)
    assert job.wait(10.0) == []
    late = f"not ready after 20 s: {', '.join(NAMES)}; see their logs (cluster.start_timeout_s raises the limit)"
    assert job.wait(0.5) == failed(late)


def test_work_that_takes_too_long_is_named() -> None:
    job = Watched()
    job.begin()
    job.beat_all(5.0, "training step 7", 60.0)
    assert [each for each in job.wait() if each not in job.effects] == []
    job.beat_all(0.5, "training step 7", 60.5)
    stuck = "nn-worker-0 (process 102 on here) has been training step 7 for 60 s; see its log "
    assert job.wait() == failed(stuck + "(cluster.work_timeout_s raises the limit)")


def test_a_silent_process_of_this_machine_is_killed_once_and_then_its_supervisor_reports() -> None:
    job, elsewhere = Watched(), Watched()
    own = job.state.origin.process
    local = ProcessId(own.pid + 1, 5, own.domain)
    for each, process in ((job, local), (elsewhere, ProcessId(7, 5, "another place"))):
        each.hello("embedding-server", 0, ProcessId(9))
        each.hello("nn-worker", 0, process)
        for name in NAMES:
            each.send(each.peer(name), Ready(each.sender(name), 0))
        for _ in range(2):
            each.now += 5.0
            each.beat("embedding-server-0")
    silent = f"nn-worker-0 (process {local.pid} on here) has shown no progress for 5 s"
    killed = event(event="warning", text=f"{silent} (cluster.silence_timeout_s), so it is killed", killed=local.pid)
    error = f"{silent}; see its log (cluster.silence_timeout_s raises the limit)"
    assert job.wait() == [killed, Kill(local, or_else=error)], "the edge fails the job if it cannot be killed"
    assert job.wait(0.1) == []
    job.now += 5.0
    job.beat("embedding-server-0")
    assert job.wait() == failed(error)
    silent = "nn-worker-0 (process 7 on here) has shown no progress for 5 s"
    assert elsewhere.wait() == failed(f"{silent}; see its log (cluster.silence_timeout_s raises the limit)")


def test_at_the_end_silent_replicas_are_not_awaited() -> None:
    job = Watched()
    job.begin()
    job.send(job.peer("nn-worker-0"), Next(job.sender("nn-worker-0"), 0))
    job.send(job.peer("nn-worker-0"), Done(job.sender("nn-worker-0"), job.state.phases.number))
    assert job.events[-1] == {"event": "phase", "phase": "done", "step": 4}
    job.send(job.peer("nn-worker-0"), Done(job.sender("nn-worker-0"), job.state.phases.number))
    assert not job.state.is_over
    job.wait(5.1)
    assert job.wait() == []
    assert job.state.is_over


def test_a_stalled_job_names_the_replicas_it_waits_for() -> None:
    job = Watched()
    job.begin()
    job.beat_all(0.0)
    for _ in range(STILL_TIMES):
        job.beat_all(5.0)
        assert job.wait() == []
    job.beat_all(1.0)
    assert job.wait() == failed(
        "all replicas are alive, yet nothing has moved for 21 s while training, waiting for nn-worker-0; see the logs "
        "(cluster.silence_timeout_s raises the limit)"
    )


def test_long_waits_are_reported_every_ten_seconds() -> None:
    job = Watched()
    job.join_all()
    job.beat_all(9.9, "compiling the network", 9.9)
    assert job.wait() == []
    told = {"event": "waiting", "replica": "nn-worker-0", "doing": "compiling the network"}
    job.beat_all(0.5, "compiling the network", 10.4)
    assert job.wait() == [event(**told, seconds=10)]
    assert job.wait(9.0) == []
    job.beat_all(1.5, "compiling the network", 20.4)
    assert job.wait() == [event(**told, seconds=20)]
    job.beat_all(10.0)
    own = {"event": "waiting", "replica": "coordinator-0", "doing": "publishing the checkpoint of step 4"}
    assert job.wait(0.0, own["doing"], 15.0) == [event(**own, seconds=15)]


def test_a_disk_that_never_answers_ends_the_job() -> None:
    job, doing = Watched(), "starting the checkpoint of step 4"
    job.begin()
    job.beat_all(60.0)
    assert job.wait(0.0, doing, 60.0)[1:] == []
    assert job.wait(1.0, doing, 61.0) == failed(
        f"coordinator-0 has been {doing} for 61 s; check the disk or store (cluster.work_timeout_s raises the limit)"
    )


def test_a_heartbeat_is_answered() -> None:
    job = Watched()
    job.begin()
    assert [each.message for each in job.beat("nn-worker-0") if isinstance(each, Reply)] == [Beat(False)]
