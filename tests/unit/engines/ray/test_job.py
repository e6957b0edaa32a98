"""The consequences of a lost actor or an ended replica, as the command decides on them."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.engines.ray import job as jobs
from persia_cli.engines.ray.followed import ActorReplica
from persia_cli.engines.ray.job import RayJob
from persia_cli.engines.ray.place import PlaceFacts
from persia_cli.errors import KilledError, RoleError, UserError
from persia_cli.plan.job import Replica, all_replicas
from tests.support.fake_ray import FakeActor, put_in_place

WORKER, SERVER = Replica("embedding-worker", 0), Replica("embedding-server", 0)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayJob]:
    """A job under way, all of whose actors answer nothing."""
    put_in_place(monkeypatch)
    monkeypatch.setattr(jobs, "SETTLE_S", 0.0)
    run = compose_run(["conf=synthetic", "cluster=ray", "recovery.max_restarts=2"])
    (tmp_path / "roles").mkdir()
    cluster = SimpleNamespace(actor=lambda replica: FakeActor(*[None] * 99), room_s=60.0, address="10.0.0.1")
    made = RayJob(SimpleNamespace(run=run, run_dir=tmp_path, replicas=all_replicas(run)), cluster)  # type: ignore[arg-type]
    own = made._coordinator
    own.begun, own.poll = True, lambda: None  # type: ignore[method-assign]
    for replica in made._waiting:
        made._others[replica] = place(tmp_path, replica)
    yield made
    own._place.close()


def place(folder: Path, replica: Replica) -> ActorReplica:
    made = ActorReplica(replica, folder / "roles" / f"{replica.name}.log", FakeActor(*[None] * 99))
    made.machine, made.begun = PlaceFacts("", "n2", "10.0.0.2"), True
    return made


def test_a_lost_actor_gets_another_but_not_for_ever(job: RayJob) -> None:
    job._others[WORKER].lost = "its node has died"
    job.poll()
    following = job._others[WORKER]
    assert (following.life, following.lost) == (2, "")
    assert job.running
    following.lost = "its node has died too"
    job.poll()
    assert job._due[WORKER] > 0  # after a wait
    job._due[WORKER] = 0.0
    job.poll()
    job._others[WORKER].lost = "and the third"
    job.poll()
    assert not job.running
    with pytest.raises(KilledError, match=r"was lost too often \(recovery\.max_restarts\): and the third"):
        job.check()


def test_memory_that_is_lost_takes_the_job_back(job: RayJob) -> None:
    job._others[SERVER].lost = "its node has died"
    job.poll()
    with pytest.raises(KilledError, match=r"^embedding-server-0 on n2 was lost, and its memory with it: its node"):
        job.check()
    job._coordinator.code = 0
    job.check()  # all was done before


@pytest.mark.parametrize(
    ("code", "log", "kind", "sentence"),
    [
        (2, "error: no such file\n", UserError, "embedding-server-0 on n2: no such file"),
        (1, "one\ntwo\n", RoleError, "embedding-server-0 on n2 ended with exit code 1; the end of "),
        (137, "", KilledError, "embedding-server-0 on n2 ended by signal 9; the end of "),
    ],
)
def test_the_end_of_a_replica_names_its_machine_and_only_a_kill_takes_the_job_back(
    code: int, log: str, kind: type[Exception], sentence: str, job: RayJob
) -> None:
    ended = job._others[SERVER]
    ended.code = code
    ended.log.write_text(log)
    assert not job.running
    with pytest.raises(kind) as raised:
        job.check()
    assert type(raised.value) is kind
    assert str(raised.value).startswith(sentence)
    assert all(line in str(raised.value) for line in log.removeprefix("error: ").splitlines())


def test_who_stands_still_or_is_cut_off_takes_the_job_back(job: RayJob, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = RoleError("embedding-server-0 (process 71 on n2) has shown no progress for 60 s")
    monkeypatch.setattr(jobs, "recorded_failure", lambda run_dir: silent)
    job._coordinator.code = 1
    job._others[SERVER].log.write_text("waiting for the coordinator at tcp://10.0.0.1:7000\n")
    with pytest.raises(KilledError, match="has shown no progress for 60 s") as killed:
        job.check()
    [note] = killed.value.__notes__
    assert note.startswith("embedding-server-0 on n2; the end of ")
    assert note.endswith(":\n  waiting for the coordinator at tcp://10.0.0.1:7000")
    job._others[SERVER].code = 1
    with pytest.raises(RoleError) as raised:
        job.check()
    assert raised.value is silent, "it has ended by itself"
