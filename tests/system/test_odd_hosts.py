"""Machines whose clocks are wrong, whose network is slow and whose folders have long names."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from persia_cli.engines.job import result_of
from tests.conftest import poll_for
from tests.support.host_job import NO_FILES
from tests.support.hosts import Host, lab, needs_hosts, processes_on, words_of
from tests.support.jobs import evaluation, losses, train
from tests.support.launched import Launched
from tests.support.small import WORDS
from tests.support.ssh import needs_sshd, on_hosts, ssh_between

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, needs_sshd, pytest.mark.timeout(600)]

LIMIT_S = 240.0
MINUTES = 420.0
"""Seconds by which clocks are wrong."""
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(3) as made:
        yield made


def processes_of(hosts: list[Host]) -> list[psutil.Process]:
    return [each for host in hosts for each in processes_on(host) if "launch-role" in words_of(each)]


@pytest.mark.parametrize("ahead_s", [MINUTES, -MINUTES], ids=["ahead", "behind"])
def test_wrong_clocks_a_slow_network_and_long_names_change_no_bit(
    ahead_s: float, hosts: list[Host], tmp_path: Path
) -> None:
    hosts[1].limit("5mbit")
    run = tmp_path / ("long" * 50)
    words = [*WORDS, *NO_FILES, *CLUSTER]
    trace = tmp_path / "trace.json"
    with ssh_between(tmp_path, hosts, {"host1": ahead_s, "host3": -ahead_s}) as ssh:
        away = [*words, *on_hosts(ssh, hosts), f"cluster.folder=/tmp/{'deep/' * 30}{'wide' * 50}"]
        with Launched([*away, "--trace", str(trace)], run) as launched:
            assert launched.end(LIMIT_S)[0] == 0, launched.output
    here = train([*words, "cluster=local"], tmp_path / "here")
    there = result_of(run)
    assert losses(there) == losses(here)
    assert evaluation(there)["auc"] == evaluation(here)["auc"]
    assert abs(there.events[0]["time"] - time.time() - ahead_s) < MINUTES / 2, "the clock was right"
    assert "trace " in launched.output
    assert "without" not in launched.output
    poll_for(lambda: not processes_of(hosts), 10.0, "the end of all processes on the hosts")
