"""The commands that `cluster=hosts` starts, word for word."""

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import HostsCluster
from persia_cli.engines.hosts.placement import settings_of
from persia_cli.engines.hosts.rendered import rendered
from persia_cli.engines.hosts.ssh import remote_command, ssh_command

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
    return settings_of(compose_run(["cluster=hosts", "cluster.hosts=[a]", *words]))


def test_the_commands_are_those() -> None:
    words = [
        "cluster=hosts",
        "cluster.hosts=[{ssh: h1, address: 10.0.0.1}, me@h2]",
        "cluster.ssh='ssh -F own'",
        "cluster.pin={embedding_server: 'node:1', nn_worker: '0-3,8'}",
    ]
    assert rendered(compose_run([*words, "cluster.persia=~/venv/bin/persia"]), "shop") == GOLDEN


def test_a_folder_may_have_any_name_and_begin_in_the_home_folder() -> None:
    hosts = hosts_of("cluster.folder='~/my jobs'")
    assert remote_command(hosts, ["on-host"]).startswith("mkdir -p ~/'my jobs' && cd ~/'my jobs' && persia on-host")


def test_options_of_the_user_come_first_since_ssh_takes_the_first_of_two() -> None:
    hosts = hosts_of("cluster.ssh='ssh -o ConnectTimeout=3'")
    command = ssh_command(hosts, hosts.hosts[0], [])
    assert command.index("ConnectTimeout=3") < command.index("ConnectTimeout=15")
