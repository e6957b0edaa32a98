"""The commands that `cluster=hosts` starts, word for word."""

import re

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import HostsCluster
from persia_cli.engines.child import last_words
from persia_cli.engines.hosts.placement import settings_of
from persia_cli.engines.hosts.rendered import rendered
from persia_cli.engines.hosts.ssh import remote_command, ssh_command

OPTIONS = "-T -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
THERE = "mkdir -p persia-jobs && cd persia-jobs && ~/venv/bin/persia"
GOLDEN = f"""\
# the driver and coordinator-0 on h1
ssh -F own {OPTIONS} h1 '{THERE} drive --background --run-dir shop'
# embedding-server-0 on me@h2, started by the driver
ssh -F own {OPTIONS} me@h2 '{THERE} launch-role embedding-server --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --attached'
# embedding-worker-0 on me@h2, started by the driver
ssh -F own {OPTIONS} me@h2 '{THERE} launch-role embedding-worker --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --attached'
# data-loader-0 on h1, started by the driver
persia launch-role data-loader --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --advertise 'tcp://10.0.0.1:*' --attached
# nn-worker-0 on h1, started by the driver
persia launch-role nn-worker --index 0 --coordinator tcp://10.0.0.1:PORT --key-file - --advertise 'tcp://10.0.0.1:*' --attached"""  # noqa: E501


def hosts_of(*words: str) -> HostsCluster:
    """The settings of a job on one machine."""
    return settings_of(compose_run(["cluster=hosts", "cluster.hosts=[a]", *words]))


def test_the_commands_are_those() -> None:
    words = [
        "cluster=hosts",
        "cluster.hosts=[{ssh: h1, address: 10.0.0.1}, me@h2]",
        "cluster.ssh='ssh -F own'",
    ]
    assert rendered(compose_run([*words, "cluster.persia=~/venv/bin/persia"]), "shop") == GOLDEN


def test_a_replica_is_kept_to_its_processors() -> None:
    words = ["cluster=hosts", "cluster.hosts=[a,b]", "cluster.embedding_servers=2"]
    run = compose_run([*words, "cluster.pin={embedding_server: ['0-3,8', 'node:1'], coordinator: 3}"])
    pinned = dict(re.findall(r"launch-role (\S+ --index \d) .*--cpus (\S+) ", rendered(run, "shop")))
    assert pinned == {
        "embedding-server --index 0": "0-3,8",
        "embedding-server --index 1": "node:1",
    }


def test_a_folder_may_have_any_name_and_begin_in_the_home_folder() -> None:
    hosts = hosts_of("cluster.folder='~/my jobs'")
    assert remote_command(hosts, ["on-host"]).startswith("mkdir -p ~/'my jobs' && cd ~/'my jobs' && persia on-host")


def test_options_of_the_user_come_first_since_ssh_takes_the_first_of_two() -> None:
    hosts = hosts_of("cluster.ssh='ssh -o ConnectTimeout=3'")
    command = ssh_command(hosts, hosts.hosts[0], [])
    assert command.index("ConnectTimeout=3") < command.index("ConnectTimeout=15")


def test_the_errors_of_a_command_count_and_else_its_last_line() -> None:
    assert last_words("error: one\nmore\nerror: two\nend\n") == "one; two"
    assert last_words("first\nlast\n\n") == "last"
    assert last_words("") == "it printed nothing"
