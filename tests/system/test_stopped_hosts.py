"""`persia stop` of a job with `cluster=hosts`, whatever its command is at, also while a machine is out of reach."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import result_of
from persia_cli.engines.running import words_of
from persia_cli.observe.journal import EVENTS, METRICS, read_journal
from tests.conftest import poll_for
from tests.support.hosts import Host, lab, needs_hosts
from tests.support.launched import Launched
from tests.support.s3 import store_on
from tests.support.small import WORDS
from tests.support.ssh import on_hosts, stand_in

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
ENDLESS = [*WORDS, *CLUSTER, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(3) as made:
        yield made


def roles(hosts: list[Host], role: str = "launch-role") -> list[psutil.Process]:
    """The processes of roles on these hosts, or of one role."""
    found = [child for host in hosts for child in psutil.Process(host.pid).children(recursive=True)]
    return [each for each in found if {"launch-role", role} <= {*words_of(each.pid)}]


def persia(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "persia_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def kinds(run_dir: Path) -> list[str]:
    return [event["event"] for event in read_journal(run_dir / EVENTS)]


@pytest.mark.parametrize("moment", ["the job goes on from", "coordinator-0 on host1", "other replicas", "of step"])
def test_a_job_is_stopped_while_it_goes_back_to_its_checkpoint(moment: str, hosts: list[Host], tmp_path: Path) -> None:
    *machines, third = hosts
    run = tmp_path / "run"
    with store_on(third) as saved:
        away = [*ENDLESS, *on_hosts(stand_in(tmp_path, machines), machines), f"checkpoint.path='{saved}'"]
        with Launched([*away, "checkpoint.every_steps=100"], run) as launched:
            poll_for(lambda: "saved" in kinds(run) or launched.process.poll(), LIMIT_S, "a checkpoint")
            before = launched.output.count(moment)
            for process in roles(machines, "embedding-server"):
                if "--supervise" in words_of(process.pid):
                    process.kill()
            poll_for(lambda: launched.output.count(moment) > before or launched.process.poll(), LIMIT_S, moment)
            stopped = persia("stop", str(run))
            assert launched.end(60.0)[0] == 75, launched.output
        assert stopped.returncode == 75, stopped.stderr
        for said in (stopped.stderr, launched.output):
            assert f"persia resume {run} goes on from there" in said
        assert not roles(hosts)
        steps = max(line["step"] for line in read_journal(run / METRICS)) + 200
        resumed = persia("resume", str(run), f"train.steps={steps}", f"checkpoint.path='{saved}'")
        assert resumed.returncode == 0, resumed.stderr
        assert result_of(run).metrics[-1]["step"] == steps


def test_a_job_that_is_stopped_at_once_does_not_go_back_to_its_checkpoint(hosts: list[Host], tmp_path: Path) -> None:
    *machines, third = hosts
    run = tmp_path / "run"
    with store_on(third) as saved:
        away = [*ENDLESS, *on_hosts(stand_in(tmp_path, machines), machines), f"checkpoint.path='{saved}'"]
        with Launched([*away, "checkpoint.every_steps=100"], run) as launched:
            poll_for(lambda: "saved" in kinds(run) or launched.process.poll(), LIMIT_S, "a checkpoint")
            stopped = persia("stop", str(run), "--now")
            assert launched.end(60.0)[0] == 130, launched.output
    assert stopped.returncode == 130, stopped.stderr
    assert "goes on from there" in stopped.stderr
    assert "the job goes on" not in launched.output
    assert not roles(hosts)


def test_a_job_is_saved_and_stopped_while_a_machine_is_out_of_reach(hosts: list[Host], tmp_path: Path) -> None:
    *machines, third = hosts
    run, ssh = tmp_path / "run", stand_in(tmp_path, machines)
    with store_on(third) as saved:
        with Launched([*ENDLESS, *on_hosts(ssh, machines), f"checkpoint.path='{saved}'"], run) as launched:
            poll_for(lambda: read_journal(run / METRICS) or launched.process.poll(), LIMIT_S, "steps trained")
            launched.process.kill()
            launched.process.wait()
        stand_in(tmp_path, machines[:1])
        logs = persia("logs", str(run))
        assert (logs.returncode, "from host2 here is what was copied before" in logs.stderr) == (0, True), logs.stderr
        stopped = persia("stop", str(run))
    assert stopped.returncode == 75, stopped.stderr
    assert "host2 is not reached by ssh: ssh: Could not resolve hostname host2" in stopped.stderr
    assert f"persia resume {run} goes on from there" in stopped.stderr
    poll_for(lambda: not roles(hosts), 30.0, "the end of all roles, which the coordinator has told")
