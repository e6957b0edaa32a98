"""Machines that are cut off: the job waits, returns to a checkpoint, or names the missing machine."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import JobResult, result_of
from persia_cli.observe.journal import METRICS, read_journal
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES, spread, started_on
from tests.support.hosts import Host, lab, needs_hosts, processes_on, words_of
from tests.support.jobs import evaluation, losses
from tests.support.launched import Launched
from tests.support.s3 import store_on
from tests.support.small import WORDS
from tests.support.ssh import needs_sshd, on_hosts, ssh_between

pytestmark = [pytest.mark.slow, needs_hosts, needs_sshd, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
LONG = [*WORDS, *CLUSTER, "dataset.generator.train_rows=128000"]
"""4,000 steps, so that it is not over when a machine is cut off."""


@pytest.fixture(scope="module")
def undisturbed(trained: Callable[..., JobResult]) -> JobResult:
    return trained(*LONG, *NO_FILES, "cluster=local")


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
    *machines, user = hosts
    with store_on(user) as saved, ssh_between(tmp_path, machines) as ssh:
        away = [*LONG, *on_hosts(ssh, machines), "cluster.silence_timeout_s=10"]
        away += [f"checkpoint.path='{saved}'", "checkpoint.every_steps=500", "checkpoint.at_end=false"]
        with Launched(away, tmp_path / "run") as launched:
            poll_for(lambda: "saved     " in launched.output or launched.process.poll(), LIMIT_S, "a checkpoint")
            (hosts[2].kill if is_lost else hosts[2].down)()
            poll_for(lambda: "goes on from the" in launched.output or launched.process.poll(), LIMIT_S, "a rollback")
            if not is_lost:
                hosts[2].up()
            assert launched.end(LIMIT_S)[0] == 0, launched.output
    assert ("the job goes on without host3" in launched.output) or not is_lost
    result = result_of(launched.run_dir)
    assert losses(result) == losses(undisturbed)
    assert evaluation(result)["auc"] == evaluation(undisturbed)["auc"]
    assert [event for event in result.events if event["event"] == "recovered"]
    alive = machines[:2] if is_lost else machines
    poll_for(lambda: not any(children(host) for host in alive), 60.0, "the end of all processes on the hosts")


def last_step(metrics: Path) -> int:
    return int(read_journal(metrics)[-1]["step"])


def children(host: Host) -> list[psutil.Process]:
    return [each for each in processes_on(host) if "launch-role" in words_of(each)]
