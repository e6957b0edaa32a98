"""Traces of a job on several machines: they come over the wire, and are on one clock though the machines are not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.observe.recordings import RECORDINGS
from tests.support.host_job import NO_FILES
from tests.support.hosts import Host, lab, needs_hosts
from tests.support.launched import Launched
from tests.support.small import WORDS
from tests.support.ssh import needs_sshd, on_hosts, ssh_between
from tests.support.traced import Seen, assert_threads_do_one_thing_at_a_time, read_trace

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, needs_sshd, pytest.mark.timeout(600)]

LIMIT_S = 240.0
AHEAD_S = [0, 5000, 70]
"""By how much the monotonic clocks of the hosts are ahead."""
FIRST, LAST = 5, 35
ROLES = {
    *("coordinator-0", "data-loader-0", "embedding-worker-0", "embedding-worker-1"),
    *("embedding-server-0", "embedding-server-1", "nn-worker-0"),
}
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2", "mode=hybrid", *NO_FILES]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with lab(3, ahead_s=AHEAD_S) as made:
        yield made


def clock_of(host: Host) -> float:
    code, said = host.python("import time; print(time.monotonic())")
    assert code == 0, said
    return float(said)


def pairs(spans: list[Seen]) -> list[tuple[Seen, Seen]]:
    """Each wait of a rank for rows, with the look-ups on servers that it waits for."""
    pulls = {(span.step, span.rank): span for span in spans if span.name == "pull"}
    look_ups = [span for span in spans if span.name == "look-up" and span.replica.startswith("embedding-server")]
    return [(pulls[span.step, span.rank], span) for span in look_ups]


def test_roles_of_three_machines_with_three_clocks_are_on_one(hosts: list[Host], tmp_path: Path) -> None:
    assert clock_of(hosts[1]) - clock_of(hosts[0]) > 4000, "the hosts have one clock, so this test checks nothing"
    path = tmp_path / "steps.json"
    options = ["--trace", str(path), "--trace-steps", f"{FIRST}:{LAST}"]
    with (
        ssh_between(tmp_path, hosts) as ssh,
        Launched([*WORDS, *CLUSTER, "train.steps=40", *on_hosts(ssh, hosts), *options], tmp_path / "run") as launched,
    ):
        code, _ = launched.end(LIMIT_S)
        assert code == 0, launched.output
    assert f"{path}: steps 5 to 34, " in launched.output
    assert "in part" not in launched.output
    assert "without" not in launched.output
    assert not (tmp_path / "run" / RECORDINGS).exists()
    spans = read_trace(path)
    assert {span.replica for span in spans} == ROLES - {"coordinator-0"}
    assert {span.step for span in spans if span.name == "look-up"} == set(range(FIRST, LAST))
    assert_threads_do_one_thing_at_a_time(spans)
    shifted_us = json.loads(path.read_text())["otherData"]["replicas_shifted_by_at_most_us"]
    assert 0 < shifted_us < 100_000
    for pull, look_up in pairs(spans):  # two of them may be shifted, each in another direction
        assert pull.begin - 2 * shifted_us <= look_up.begin < look_up.end <= pull.end + 2 * shifted_us
