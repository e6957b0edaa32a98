"""`persia stop` of a job with `cluster=hosts`, whatever its command is at, also while a machine is out of reach."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import result_of
from persia_cli.observe.journal import METRICS, read_journal
from tests.conftest import poll_for
from tests.support.hosts import Host, lab, needs_hosts, processes_on, words_of
from tests.support.launched import Launched
from tests.support.s3 import store_on
from tests.support.small import WORDS
from tests.support.ssh import needs_sshd, on_hosts, ssh_between

pytestmark = [pytest.mark.slow, needs_hosts, needs_sshd, pytest.mark.timeout(600)]

LIMIT_S = 240.0
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
ENDLESS = [*WORDS, *CLUSTER, "dataset.generator.train_rows=1000000000", "train.log_every_steps=5"]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(3) as made:
        yield made


def roles(hosts: list[Host], role: str = "launch-role") -> list[psutil.Process]:
    """The processes of roles on these hosts, or of one role."""
    found = [each for host in hosts for each in processes_on(host)]
    return [each for each in found if {"persia_cli", "launch-role", role} <= {*words_of(each)}]


def persia(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "persia_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_job_is_stopped_while_it_goes_back_to_its_checkpoint(hosts: list[Host], tmp_path: Path) -> None:
    *machines, third = hosts
    run, moment = tmp_path / "run", "the job goes on from"
    with store_on(third) as saved, ssh_between(tmp_path, machines) as ssh:
        away = [*ENDLESS, *on_hosts(ssh, machines), f"checkpoint.path='{saved}'"]
        with Launched([*away, "checkpoint.every_steps=100"], run) as launched:
            poll_for(lambda: "saved     " in launched.output or launched.process.poll(), LIMIT_S, "a checkpoint")
            for process in roles(machines, "embedding-server"):
                if "--attached" in words_of(process):
                    process.kill()
            poll_for(lambda: moment in launched.output or launched.process.poll(), LIMIT_S, moment)
            stopped = persia("stop", str(run))
            assert launched.end(60.0)[0] == 75, launched.output
        assert stopped.returncode == 75, stopped.stderr
        for said in (stopped.stderr, launched.output):
            assert f"persia resume {run} goes on from there" in said
        poll_for(lambda: not roles(hosts), 10.0, "the end of all roles")
        steps = max(line["step"] for line in read_journal(run / METRICS)) + 200
        resumed = persia("resume", str(run), f"train.steps={steps}", f"checkpoint.path='{saved}'")
        assert resumed.returncode == 0, resumed.stderr
        assert result_of(run).metrics[-1]["step"] == steps
