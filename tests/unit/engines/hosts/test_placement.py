"""The machines of replicas, and the commands that start them there."""

from pathlib import Path

import pytest

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import HostsCluster
from persia_cli.engines.engine import settings_of
from persia_cli.engines.hosts.engine import HostsEngine
from persia_cli.engines.hosts.placement import placement_of
from persia_cli.engines.hosts.ssh import remote_command, ssh_command
from persia_cli.errors import ConfigError

BIG = ["embedding_servers=3", "embedding_workers=2", "nn_workers=2", "data_loaders=3"]


def placed(hosts: str, *counts: str) -> dict[str, str]:
    words = ["cluster=hosts", f"cluster.hosts={hosts}", *(f"cluster.{count}" for count in counts)]
    return {replica.name: host.ssh for replica, host in placement_of(compose_run(words)).items()}


def test_ranks_begin_at_the_first_machine_and_servers_after_them() -> None:
    assert placed("[a,b,c,d]", *BIG) == {
        "coordinator-0": "a",
        "embedding-server-0": "c",
        "embedding-server-1": "d",
        "embedding-server-2": "a",
        "embedding-worker-0": "c",
        "embedding-worker-1": "d",
        "data-loader-0": "a",
        "data-loader-1": "b",
        "data-loader-2": "a",
        "nn-worker-0": "a",
        "nn-worker-1": "b",
    }


def test_embedding_workers_may_be_next_to_ranks() -> None:
    found = placed("[a,b,c,d]", "placement=beside_ranks", *BIG)
    assert found == placed("[a,b,c,d]", *BIG) | {"embedding-worker-0": "a", "embedding-worker-1": "b"}


def test_packed_replicas_leave_machines_free_except_for_named_roles() -> None:
    assert set(placed("[a,b,c]", "placement=packed", *BIG).values()) == {"a"}
    found = placed("[{ssh: a, roles: [nn-worker]}, b, c]", "placement=packed", *BIG)
    assert {name: host for name, host in found.items() if host != "b"} == {"nn-worker-0": "a", "nn-worker-1": "a"}


def test_roles_pin_replicas_and_machines_without_them_have_the_rest() -> None:
    hosts = "[{ssh: a, roles: [nn-worker]}, {ssh: b, roles: [embedding-server, embedding-server-1]}, c, "
    found = placed(hosts + "{ssh: d, roles: [embedding-server]}]", *BIG)
    by_host = {name: [replica for replica, host in found.items() if host == name] for name in "abcd"}
    assert by_host == {
        "a": ["nn-worker-0", "nn-worker-1"],
        "b": ["embedding-server-0", "embedding-server-1", "embedding-server-2"],
        "c": ["coordinator-0", "embedding-worker-0", "embedding-worker-1", *(f"data-loader-{i}" for i in range(3))],
        "d": [],
    }


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        ("[]", "cluster=hosts needs machines: give cluster.hosts=[NAME,…], as ssh knows them"),
        ("[{ssh: a, roles: [nn-worker]}]", "no machine is for coordinator-0, since all have roles; add coordinator to"),
        ("[{ssh: a, roles: [trainer]}, b]", "a has the role trainer, and this job has no such replica; name one of co"),
        ("[{ssh: a, roles: [nn-worker-1]}, b]", "a has the role nn-worker-1, and this job has no such replica"),
        ("[{ssh: a, roles: [nn-worker-0]}, {ssh: b, roles: [nn-worker-0]}, c]", "nn-worker-0 is in roles of a and b; "),
    ],
)
def test_what_cannot_be_placed_is_refused(hosts: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        placed(hosts)
    assert sentence in str(refused.value)


OPTIONS = "-T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
THERE = "mkdir -p persia-jobs && cd persia-jobs && ~/venv/bin/persia"
GOLDEN = f"""\
# the driver and coordinator-0 on h1
ssh -F own {OPTIONS} h1 '{THERE} drive --background --run-dir shop'
# embedding-server-0 on me@h2, started by the driver
ssh -F own {OPTIONS} me@h2 '{THERE} launch-role embedding-server --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --cpus node:1 --attached'
# embedding-worker-0 on me@h2, started by the driver
ssh -F own {OPTIONS} me@h2 '{THERE} launch-role embedding-worker --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --attached'
# data-loader-0 on h1, started by the driver
persia launch-role data-loader --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --advertise 'tcp://10.0.0.1:*' --attached
# nn-worker-0 on h1, started by the driver
persia launch-role nn-worker --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --advertise 'tcp://10.0.0.1:*' --cpus 0-3,8 --attached"""  # noqa: E501


def hosts_of(*words: str) -> HostsCluster:
    """The settings of a job on one machine."""
    return settings_of(compose_run(["cluster=hosts", "cluster.hosts=[a]", *words]), HostsCluster)


def test_the_commands_are_those() -> None:
    words = [
        "cluster=hosts",
        "cluster.hosts=[{ssh: h1, address: 10.0.0.1}, me@h2]",
        "cluster.ssh='ssh -F own'",
        "cluster.pin={embedding_server: 'node:1', nn_worker: '0-3,8'}",
    ]
    assert HostsEngine().rendered(compose_run([*words, "cluster.persia=~/venv/bin/persia"]), Path("shop")) == GOLDEN


def test_a_folder_may_have_any_name_and_begin_in_the_home_folder() -> None:
    hosts = hosts_of("cluster.folder='~/my jobs'")
    assert remote_command(hosts, ["on-host"]).startswith("mkdir -p ~/'my jobs' && cd ~/'my jobs' && persia on-host")


def test_options_of_the_user_come_first_since_ssh_takes_the_first_of_two() -> None:
    hosts = hosts_of("cluster.ssh='ssh -o ConnectTimeout=3'")
    command = ssh_command(hosts, hosts.hosts[0], [])
    assert command.index("ConnectTimeout=3") < command.index("ConnectTimeout=15")
