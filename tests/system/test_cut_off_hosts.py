"""Machines that are cut off: the job waits, goes back to a checkpoint, or says whom it lacks."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES, spread, started_on
from tests.support.hosts import CACHE, Host, lab, needs_hosts
from tests.support.jobs import evaluation, losses, train
from tests.support.launched import Launched
from tests.support.s3 import store_on
from tests.support.small import WORDS
from tests.support.ssh import PERSIA, on_hosts, stand_in
from tests.support.sshd import needs_sshd, served_by_ssh

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
LONG = [*WORDS, *CLUSTER, "dataset.generator.train_rows=128000"]
"""4,000 steps, so that it is not over when a machine is cut off."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*LONG, *NO_FILES, "cluster=local"], tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(4) as made:
        yield made


def test_a_job_goes_on_as_if_nothing_had_been_when_a_host_was_cut_off_for_ten_seconds(
    undisturbed: JobResult, hosts: list[Host], tmp_path: Path
) -> None:
    with started_on(spread(hosts), [*LONG, *NO_FILES], tmp_path / "logs") as job:
        job.wait_for_training()
        hosts[2].down()
        steps = still_after(job.run_dir / METRICS, 10.0)
        hosts[2].up()
        result = job.result()
    assert steps < 4000, "the job was over before its host was cut off"
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]


def still_after(metrics: Path, seconds: float) -> int:
    """Return the step that a job stands at after so many seconds."""
    until = time.monotonic() + seconds
    poll_for(lambda: time.monotonic() > until, 2 * seconds, "the end of the time without a network")
    return last_step(metrics)


@pytest.mark.parametrize("is_lost", [False, True], ids=["for_longer_than_others_wait", "for_good"])
def test_a_job_goes_back_to_its_checkpoint_when_a_host_is_cut_off(
    is_lost: bool, undisturbed: JobResult, hosts: list[Host], tmp_path: Path
) -> None:
    with store_on(hosts[3]) as saved:
        machines = hosts[:3]
        away = [*LONG, *on_hosts(stand_in(tmp_path, machines), machines), "cluster.silence_timeout_s=10"]
        away += [f"checkpoint.path='{saved}'", "checkpoint.every_steps=500", "checkpoint.at_end=false"]
        with Launched(away, tmp_path / "run") as launched:
            events = launched.run_dir / EVENTS
            poll_for(lambda: kinds(events).count("saved") > 0 or launched.process.poll(), LIMIT_S, "a checkpoint")
            (hosts[2].kill if is_lost else hosts[2].down)()
            poll_for(lambda: "goes on" in launched.output or launched.process.poll(), LIMIT_S, "a rollback")
            if not is_lost:
                hosts[2].up()
            assert launched.end(LIMIT_S)[0] == 0, launched.output
    assert "shown no progress for 10 s" in launched.output
    assert ("the job goes on without host3" in launched.output) == is_lost
    result = result_of(launched.run_dir)
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]
    ready = [event for event in result.events if event["event"] == "ready"][-1]
    on = {each["name"]: each["host"] for each in ready["replicas"]}
    assert (on["embedding-server-1"] == "host3") != is_lost
    alive = machines[:2] if is_lost else machines
    poll_for(lambda: not any(children(host) for host in alive), 10.0, "the end of all processes on the hosts")


@needs_sshd
def test_over_real_ssh_a_host_is_waited_for_when_it_was_cut_off_for_ten_seconds_and_not_for_sixty(
    undisturbed: JobResult, hosts: list[Host], tmp_path: Path
) -> None:
    *machines, user = hosts
    persia = f"env HOME=/tmp TMPDIR=/tmp NUMBA_CACHE_DIR={CACHE} {PERSIA}"
    with store_on(user) as saved, served_by_ssh(machines, user, tmp_path) as ssh:
        away = ["cluster=hosts", f"cluster.hosts=[{','.join(host.address for host in machines)}]"]
        away += [f"cluster.ssh='{ssh}'", f"cluster.persia='{persia}'", "cluster.folder=/tmp/jobs"]
        away += [f"checkpoint.path='{saved}'", "checkpoint.every_steps=500", "checkpoint.at_end=false"]
        with Launched([*LONG, *away], tmp_path / "run") as launched:
            events, metrics = launched.run_dir / EVENTS, launched.run_dir / METRICS
            poll_for(lambda: kinds(events).count("saved") > 0 or launched.process.poll(), LIMIT_S, "a checkpoint")
            machines[2].down()
            stands_at = still_after(metrics, 10.0)
            machines[2].up()
            poll_for(lambda: last_step(metrics) > stands_at or launched.process.poll(), LIMIT_S, "more steps")
            assert "goes on" not in launched.output
            machines[2].down()
            still_after(metrics, 60.0)
            machines[2].up()
            assert launched.end(LIMIT_S)[0] == 0, launched.output
    assert "shown no progress for 30 s" in launched.output
    assert "goes on" in launched.output
    result = result_of(launched.run_dir)
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]
    poll_for(lambda: not any(children(host) for host in machines), 60.0, "the end of all processes on the hosts")


def last_step(metrics: Path) -> int:
    return int(read_journal(metrics)[-1]["step"])


def children(host: Host) -> list[psutil.Process]:
    found = psutil.Process(host.pid).children(recursive=True)
    return [process for process in found if "launch-role" in process.cmdline()]


def kinds(events: Path) -> list[str]:
    return [event["event"] for event in read_journal(events)]


def test_a_replica_whose_machine_does_not_reach_the_coordinator_is_shown_with_its_machine_and_log(
    hosts: list[Host], tmp_path: Path
) -> None:
    first, second, *_ = hosts
    # Packets to the coordinator's machine go nowhere, as behind a firewall.
    lost = ["ip", "neigh", "replace", first.address, "lladdr", "02:00:00:00:00:77", "dev", "eth0"]
    assert second.run([*lost, "nud", "permanent"])[0] == 0
    words = [*LONG, *on_hosts(stand_in(tmp_path, [first, second]), [first, second]), *NO_FILES]
    with Launched([*words, "cluster.start_timeout_s=20"], tmp_path / "run") as launched:
        assert launched.end(LIMIT_S)[0] == 1, launched.output
    said = launched.output
    assert "not joined after 20 s: " in said
    assert "embedding-server-0 on host2; the end of its log:" in said
    assert f"waiting for the coordinator at tcp://{first.address}:" in said
